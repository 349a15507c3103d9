"""The command line of all benchmarks: ``python -m benchmarks NAME``; without a name, a list."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: name -> (its function, what it measures). The function takes options, returns the exit status.
BENCHMARKS: dict[str, tuple[str, str]] = {
    "demo": ("demo:main", "real models, eager beside compiled; 1 if an error is too large"),
    "steady": ("steady:main", "milliseconds a call beside torch.compile and the engines"),
    "peers": ("steady:peers", "the newest rows of `steady` of 15 models at batch 1 and 8, means"),
    "first_call": ("first_call:main", "seconds until the first result, stage by stage"),
    "second_process": (
        "second_process:main",
        "seconds until the first and tenth result with what a first process kept",
    ),
    "serving": ("serving:main", "a server's first seconds: first result, longest call"),
    "server_start": (
        "serving:start",
        "twenty models made ready, one after another, together, warm",
    ),
    "overhead": ("overhead:main", "microseconds of a call that computes nothing"),
    "pythons": ("pythons:main", "a call and the first call, release by release of Python"),
    "step_overhead": ("overhead:steps", "microseconds around a training step of a small MLP"),
    "free_threaded": ("free_threaded:main", "calls a second from one thread and from eight"),
    "loops": ("scenarios:loops", "loops with a graph break in them, and of plain Python"),
    "limits": (
        "limits:main",
        "just under and just beyond each limit, and programs that never settle",
    ),
    "steady_state": (
        "steady_state:main",
        "settled calls of programs around which capture saves little",
    ),
    "dynamic": ("scenarios:dynamic", "compiles over many sizes: resnet18 and BERT"),
    "generate": ("generation:main", "tokens a second of generate(), by cache and weights"),
    "token_floor": (
        "token_floor:main",
        "milliseconds a token on a GPU beside its floor, and where the rest goes by kernel",
    ),
    "cpu_tokens": (
        "cpu_tokens:main",
        "milliseconds a token on a CPU beside reading the weights, llama.cpp and OpenVINO",
    ),
    "cpu_zoo": (
        "cpu_zoo:main",
        "twelve models by one thread's processor time: inference, frozen, a training step",
    ),
    "packages": ("packages:main", "size, load and first result of packages, beside AOTInductor's"),
    "native_library": (
        "native_library:main",
        "plain shared libraries: size, start and speed beside ONNX Runtime",
    ),
    "zoo": ("zoo:main", "every model of zoo_models: graphs, breaks, equal to eager, first call"),
    "ecosystem": ("ecosystem:main", "programs of many libraries: equal, graphs, breaks, speed"),
    "capture": ("capture:main", "programs at the edges of capture, beside torch.compile"),
    "training": ("training:main", "seven models trained for 20 steps, judged by float64"),
    "training_speed": ("training:speed", "milliseconds and memory of a training step"),
    "whole_steps": (
        "whole_steps:main",
        "whole training steps with the optimizer inside, beside torch.compile",
    ),
    "optimizer_steps": (
        "optimizer_steps:main",
        "the step of each class of torch.optim alone, beside torch.compile",
    ),
    "fallbacks": (
        "fallbacks:main",
        "counts of every reason for which graphs, operators and functions fall back",
    ),
    "gradients": ("gradients:main", "one step of every architecture, judged by float64"),
    "auto": ("auto:main", 'backend="auto" beside each backend alone'),
    "engines": ("engines:main", "onnxrt and tvm beside their engines used by hand"),
    "engine_loads": ("engines:loads", "onnxrt and tvm: batch sizes, large inputs, threads"),
    "tvm_tuning": ("engines:tuning", "the search of tvm's MetaSchedule for one model"),
    "bandwidth": ("bandwidth:main", "memory-bound kernels beside the best copy of this machine"),
    "distributed_steps": (
        "distributed_steps:main",
        "on two GPUs: steps of DDP, FSDP2 and tensor parallelism",
    ),
    "flex_attention": (
        "flex_attention:main",
        "flex_attention by mask and length, beside torch.compile",
    ),
    "gpu": ("gpu:main", "on a GPU: inference and training, eager and torch.compile beside ours"),
    "gpu_zoo": (
        "gpu_zoo:main",
        "on a GPU: the programs of gpu_programs beside torch.compile's modes",
    ),
    "cudagraphs": ("gpu:cudagraphs", "on a GPU: the cudagraphs backend beside eager"),
    "kernels": ("kernels:main", "on a GPU: a program's kernels beside torch.compile's, aligned"),
    "gpu_tutorial": ("gpu:tutorial", "on a GPU: PyTorch's tutorial, densenet121"),
    "gpu_limits": ("gpu_limits:main", "on a GPU: beside a copy; a warm first call"),
    "gpu_launch": ("gpu_limits:launch", "on a GPU: what a launch costs the host"),
}

#: What the name `all` runs, with the options given to it.
ALL = (("steady", "--groups", "issue", "seeds", "more"), ("first_call",), ("overhead",), ("loops",))


def run(name: str, options: Sequence[str]) -> int:
    """Runs one benchmark; its exit status."""
    module, _, function = BENCHMARKS[name][0].partition(":")
    status: int = getattr(importlib.import_module(f"benchmarks.{module}"), function)(list(options))
    return status


def main(arguments: Sequence[str]) -> int:
    """The exit status: of the benchmark, or 2 for an unknown name."""
    name, *options = arguments or ("--help",)
    if name in BENCHMARKS:
        return run(name, options)
    if name == "all":
        return max(run(item, [*settings, *options]) for item, *settings in ALL)
    print("python -m benchmarks NAME [options]; --help after a name says which\n")
    for item, (_, text) in {**BENCHMARKS, "all": ("", ", ".join(item for item, *_ in ALL))}.items():
        print(f"  {item:15} {text}")
    if name in ("-h", "--help"):
        return 0
    print(f"\nno benchmark {name!r}")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
