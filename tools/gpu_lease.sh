#!/usr/bin/env bash
# What one lease of a GPU is for: tools/gpu_lease.sh PART ... with the results under $OUT.
#
# Parts: tests, packages, warm, weights, static, flex, gradients; on two GPUs: distributed. Each has a time
# limit of its own and one line of the summary at the end. BENCHMARK_COMMIT names the commit where there is no git.
set -u
cd "$(dirname "$0")/.."
out="${OUT:-gpu_lease}"
mkdir -p "$out"
python -m pip install --quiet --no-index --no-deps --no-build-isolation \
    packages/frontend-tracer packages/inductor-backend packages/cudagraphs-backend || exit 1
# What the machine lacks travels as wheels: pytest-xdist, expecttest, accelerate, torchao, ...
if compgen -G ".whl/*.whl" >/dev/null; then
    python -m pip install --quiet --no-index --no-deps .whl/*.whl
fi
side_by_side=$(python -c "import xdist" 2>/dev/null && echo "-n 8")
summary=()

part() { # name, seconds, command
    local name="$1" limit="$2" begin=$SECONDS
    shift 2
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    summary+=("$(printf '%-12s status %3d %4d s  %s' "$name" $? $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c -150)")")
}

for name in "$@"; do
    case "$name" in
    tests) part tests 420 python -m pytest -q -m gpu $side_by_side tests/core tests/triton_kernels tests/cudagraphs tests/tracer ;;
    packages) part packages 120 python -m pytest -q -m gpu tests/core/test_packages.py ;;
    warm) part warm 500 python -m benchmarks second_process --devices cuda ;;
    weights) part weights 500 python -m benchmarks generate --device cuda --models llama --caches static \
        --weights int4 float8 int8_dynamic --out "$out/weights.json" ;;
    static) part static 500 python -m benchmarks generate --device cuda --caches static --out "$out/static.json" ;;
    flex) part flex 280 python -m benchmarks flex_attention --device cuda --out "$out/flex.json" ;;
    gradients) part gradients 560 python -m benchmarks gradients --device cuda --workers 12 --time-budget 540 \
        --out "$out/gradients.jsonl" ;;
    distributed) part distributed 500 python -m benchmarks distributed_steps --json "$out/distributed.json" ;;
    *) summary+=("$name: no such part") ;;
    esac
done
cp benchmarks/results/second_process/*nvidia* "$out" 2>/dev/null
printf '%s\n' "${summary[@]}"
