#!/usr/bin/env bash
# Whole training steps on the GPUs of one lease: tools/gpu_steps.sh SECONDS WAYS OPTIMIZERS MODELS [MODELS ...]
#
# One list of models (names with commas) a GPU, at the same time, each with its share of the processors;
# the rows return under $OUT.
set -u
cd "$(dirname "$0")/.."
out="${OUT:-gpu_lease}"
mkdir -p "$out"
python -m pip install --quiet --no-index --no-deps --no-build-isolation \
    packages/frontend-tracer packages/inductor-backend packages/cudagraphs-backend || exit 1
seconds="$1" ways="$2" optimizers="$3" number=0
shift 3
share=$(($(nproc) / $#))
for models in "$@"; do
    CUDA_VISIBLE_DEVICES=$number taskset -c "$((number * share))-$((number * share + share - 1))" \
        timeout "$((seconds + 60))" python -m benchmarks whole_steps --device cuda --limit "${LIMIT:-150}" \
        --models ${models//,/ } --optimizers ${optimizers//,/ } --ways ${ways//,/ } \
        --seconds "$seconds" --json "$out/steps_$number.json" >"$out/steps_$number.log" 2>&1 &
    number=$((number + 1))
done
wait
for log in "$out"/steps_*.log; do
    grep -v "^$" "$log" | awk '/^model  /{table=1} table' | cut -c -210
done
