#!/usr/bin/env bash
# What one lease of a GPU is for: tools/gpu_lease.sh PART[,PART...] ... with the results under $OUT.
#
# Parts: tests, warm, weights, static, flex, gradients; on two GPUs: distributed. Parts that a comma joins
# run at once (checks; never what is timed), the others one after another. Each has a time limit of its own and one
# line of the summary at the end; their logs return as one archive, because few files return from a lease.
# BENCHMARK_COMMIT names the commit where there is no git, LIMIT replaces the parts' time limits (seconds).
set -u
cd "$(dirname "$0")/.."
out="${OUT:-gpu_lease}"
logs=$(mktemp -d)
mkdir -p "$out"
# What the machine lacks travels as wheels: pytest-xdist, execnet, pytest-timeout, expecttest, torchao, ...
if compgen -G ".whl/*.whl" >/dev/null; then
    python -m pip install --quiet --no-index --no-deps .whl/*.whl
fi
python -m pip install --quiet --no-index --no-deps --no-build-isolation \
    packages/frontend-tracer packages/inductor-backend packages/cudagraphs-backend || exit 1
side_by_side=$(python -c "import xdist" 2>/dev/null && echo "-n 8")

part() { # name, seconds, command
    local name="$1" limit="${LIMIT:-$2}" begin=$SECONDS
    shift 2
    timeout "$limit" "$@" >"$logs/$name.log" 2>&1
    printf '%-12s status %3d %4d s  %s\n' "$name" $? $((SECONDS - begin)) \
        "$(tail -n 1 "$logs/$name.log" | cut -c -150)" >>"$logs/summary"
}

run() {
    case "$1" in
    tests) part tests 560 python -m pytest -q -m gpu $side_by_side --continue-on-collection-errors tests/export \
        tests/triton_kernels tests/cudagraphs tests/fx_capture tests/operator_programs tests/test_gpu_page.py ;;
    warm) part warm 500 python -m benchmarks second_process --devices cuda ;;
    weights) part weights 500 python -m benchmarks generate --device cuda --models llama --caches static \
        --weights int4 float8 int8_dynamic --out "$out/weights.json" ;;
    static) part static 500 python -m benchmarks generate --device cuda --caches static --out "$out/static.json" ;;
    flex) part flex 280 python -m benchmarks flex_attention --device cuda --out "$out/flex.json" ;;
    gradients) part gradients 560 python -m benchmarks gradients --device cuda --workers 12 --time-budget 540 \
        --out "$out/gradients.jsonl" ;;
    # The slowest compiler last: what the limit cuts off is least missed.
    distributed) part distributed 500 python -m benchmarks distributed_steps --models llama --forms tp ddp fsdp2 \
        --compilers eager ours torch --json "$out/distributed.json" ;;
    *) echo "$1: no such part" >>"$logs/summary" ;;
    esac
}

for together in "$@"; do
    for name in ${together//,/ }; do
        run "$name" &
    done
    wait
done
cp benchmarks/results/second_process/*nvidia* "$out" 2>/dev/null
tar -czf "$out/logs.tgz" -C "$logs" .
cat "$logs/summary"
