#!/usr/bin/env bash
# Several commands on the GPUs of one lease: tools/gpu_split.sh SECONDS COMMAND [COMMAND ...]
#
# One command a GPU, at the same time, each with its share of the processors and $OUT in its
# environment, ended after SECONDS. Each log returns, and its table is printed.
set -u
cd "$(dirname "$0")/.."
export OUT="${OUT:-gpu_lease}"
mkdir -p "$OUT"
if compgen -G ".whl/*.whl" >/dev/null; then
    python -m pip install --quiet --no-index --no-deps .whl/*.whl
fi
python -m pip install --quiet --no-index --no-deps --no-build-isolation \
    packages/frontend-tracer packages/inductor-backend packages/cudagraphs-backend || exit 1
seconds="$1" number=0
shift
share=$(($(nproc) / $#))
for command in "$@"; do
    CUDA_VISIBLE_DEVICES=$number taskset -c "$((number * share))-$((number * share + share - 1))" \
        timeout "$seconds" bash -c "$command" >"$OUT/split_$number.log" 2>&1 &
    number=$((number + 1))
done
wait
for log in "$OUT"/split_*.log; do
    echo "== $log"
    tail -n "${LINES_OF_EACH:-40}" "$log" | cut -c -200
done
