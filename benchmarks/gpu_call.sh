#!/bin/bash
# One call on a lent GPU: bash benchmarks/gpu_call.sh checks|rows|first [seconds]
#
#   checks  the GPU tests (all of them), compute-sanitizer, a sample of the operator sweep, what was left of Python 3.12
#   rows    training resnet18, GPT-2, Llama, ViT: ours and torch.compile's in one lease, where the time goes
#   first   the limits (copy, chain, warm second process), what a launch costs, first calls with empty caches, training
#           densenet121, the tutorial
#
# Each part ends within `seconds` (540). It needs the packages pytest-xdist, execnet and expecttest, which the machine does not
# have: put them into .gpu (carried with the call: carry=[".gpu"]) by
#   pip download/install --no-deps --target .gpu execnet==2.1.2 pytest-xdist==3.8.0 expecttest
# SWEEP_FROM: a file of rows of the sweep that are not run again (carried with the call, too).
# Without the packages the tests run in one process and the sweep is left out, and it says so. Everything comes back as $OUT/PART.tgz; the
# end of the output is a short table. Nothing outside of the tree, /tmp and $OUT is written, no process of others is touched.
set -u
part=${1:-checks}; limit=${2:-540}
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
started=$(date +%s)
left() { echo $(( limit - 15 - $(date +%s) + started )); }
at_most() { local l; l=$(left); echo $(( l < $1 ? (l > 5 ? l : 5) : $1 )); }
if [ -z "${GPU_CALL_INSTALLED:-}" ]; then  # entry points of the packages; tests read them
  for p in frontend-tracer inductor-backend cudagraphs-backend; do
    $python -m pip install -q --no-index --no-deps --no-build-isolation packages/$p 2>&1 | grep -v WARN
  done
fi
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD${EXTRA_PATH:+:$EXTRA_PATH}:$PWD/.gpu
real=${OUT:-/tmp/gpu_call}; mkdir -p "$real"
export OUT=/tmp/gpu_call_$part; rm -rf "$OUT"; mkdir -p "$OUT"
pack() { tar czf "$real/$part.tgz" -C /tmp "$(basename "$OUT")"; }
trap pack EXIT
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | tee "$OUT/machine.txt"
$python -c "import torch, triton; print('torch', torch.__version__, 'triton', triton.__version__)" | tee -a "$OUT/machine.txt"
git log -1 --format='commit %h %s' 2>/dev/null | tee -a "$OUT/machine.txt"
workers() { $python -c "import xdist" 2>/dev/null && echo "-n $1 --dist load" || echo ""; }
tests() {  # name, seconds, arguments of pytest
  local name=$1 seconds=$2; shift 2
  # interrupted, not killed: pytest then still writes what has failed
  timeout -s INT -k 10 "$seconds" $python -m pytest -v -p no:cacheprovider --tb=short -rf "$@" > "$OUT/$name.txt" 2>&1
  printf "\nrc %s\n" $? >> "$OUT/$name.txt"
}
told() { grep -h "^FAILED\|^ERROR\|\] FAILED\| passed\| failed\|^rc [1-9]\|^E  " "$OUT/$1.txt" | cut -c1-220 | tail -"${2:-40}"; }

checks() {
  local first=$(( (limit - 60) * 6 / 10 )) rest
  [ -n "$(workers 2)" ] || echo "no pytest-xdist: tests run in one process"
  ( export OMP_NUM_THREADS=1
    tests gpu_tests $first -m gpu $(workers 7) tests/triton_kernels tests/cudagraphs tests/test_gpu_page.py ) &
  ( export OMP_NUM_THREADS=1
    tests python312 $first $(workers 5) tests/triton_kernels/test_masks.py tests/tracer/test_lang_type_parameters.py \
      tests/tracer/test_torch_higher_order.py tests/tracer/test_zoo.py tests/tracer/test_generate.py \
      tests/aten/test_training.py tests/aten/test_random_programs.py -k "beit or mistral or bfloat16 or masks or parts or type_param" ) &
  wait
  pack
  [ -z "${SWEEP_FROM:-}" ] || cp "$SWEEP_FROM" "$OUT/sweep.jsonl"
  rest=$(at_most 400)
  ( timeout -k 5 "$rest" $python -m benchmarks.gpu_sanitizer --seconds $(( rest - 15 )) --workers 6 > "$OUT/sanitizer.txt" 2>&1 ) &
  ( $python -c "import expecttest" 2>/dev/null || { echo "no expecttest: no sweep" > "$OUT/sweep.txt"; exit; }
    timeout -k 5 "$rest" $python -m benchmarks.gpu_sweep --out "$OUT/sweep.jsonl" --seconds $(( rest - 20 )) --workers 7 > "$OUT/sweep.txt" 2>&1 ) &
  wait
  echo "== GPU tests"; told gpu_tests; echo "== Python 3.12"; told python312
  echo "== sanitizer"; tail -12 "$OUT/sanitizer.txt" | cut -c1-200
  echo "== sweep"; grep -v "^Warn" "$OUT/sweep.txt" | tail -14 | cut -c1-220
}

timed() {  # file, seconds, arguments of benchmarks.gpu
  local file=$1 seconds; seconds=$(at_most "$2"); shift 2
  timeout -k 5 $(( seconds + 5 )) $python -m benchmarks.gpu --out "$OUT/$file.json" --seconds "$seconds" "$@" >> "$OUT/$file.txt" 2>&1
  pack
}

rows() {
  timed rows 130 --rows "training resnet18 16x224x224" --compilers ours torch torch:reduce-overhead ours:reduce-overhead
  timed rows 100 --rows "GPT-2 4x512" --compilers ours ours:max-autotune torch torch:reduce-overhead
  timed rows 100 --rows "Llama-style bf16 1x2048" --compilers ours ours:max-autotune torch torch:reduce-overhead
  timed rows 50 --rows "ViT-B/16 16" --compilers ours torch
  # In processes of their own: the first mode of a process is the one whose first call counts.
  timed rows 75 --rows "GPT-2 4x512" "Llama-style bf16 1x2048" --compilers torch:max-autotune
  timeout -k 5 "$(at_most 80)" $python -m benchmarks.gpu_kernels "training resnet18 16x224x224" ours torch --seconds 38 \
    --out "$OUT/kernels.txt" > /dev/null 2>&1
  [ "$(left)" -lt 25 ] || timed rows 60 --rows "training densenet121 16x128x128" --compilers ours
  $python -m benchmarks.gpu_call "$OUT/rows.json"
  grep "^###" "$OUT/kernels.txt" 2>/dev/null
}

first() {
  local small=("cos+sin 10,000" "layer_norm-gelu-softmax 4096x4096" "resnet18 1x64x64" "BERT-base 1x12")
  local l
  l=$(at_most 95)
  timeout -k 5 "$l" $python -m benchmarks.gpu_limits --seconds $(( l - 5 )) --out "$OUT/limits.json" > "$OUT/limits.txt" 2>&1
  timeout -k 5 "$(at_most 60)" $python -m benchmarks.gpu_launch --torch --out "$OUT/launch.json" > "$OUT/launch.txt" 2>&1
  timed cold 115 --rows "${small[@]}" --compilers ours torch
  timed densenet 165 --rows "training densenet121 16x128x128" --compilers ours torch:reduce-overhead torch
  timeout -k 5 "$(at_most 100)" $python -m benchmarks.gpu_tutorial > "$OUT/tutorial.txt" 2>&1
  echo "== limits"; tail -8 "$OUT/limits.txt" | cut -c1-300; echo "== launches"; tail -14 "$OUT/launch.txt"
  for file in cold densenet; do echo "== $file"; $python -m benchmarks.gpu_call "$OUT/$file.json"; done
  tail -4 "$OUT/tutorial.txt"
}

case $part in
  checks|rows|first) $part ;;
  *) echo "checks, rows or first, not $part"; exit 2 ;;
esac
echo "$(( $(date +%s) - started )) s"
