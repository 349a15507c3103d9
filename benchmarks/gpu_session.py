"""One call on a lent GPU: checks what is new, then times it. ``python -m benchmarks.gpu_session --seconds 420``.

Checks run side by side in processes of their own (they do not time anything), rows of `benchmarks.gpu` one after the other
afterwards. Writes to $OUT (or the folder of results): ``checks.txt`` (the ends of the checks' outputs), ``gpu.json`` (rows),
``choices.json`` (every measured choice of max-autotune: milliseconds of the operator and of each kernel). Prints a short
table last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

MODES, FIRST = "tests/triton_kernels/test_gpu_modes.py", "tests/triton_kernels/test_gpu.py"

#: name -> arguments of pytest.
CHECKS = {
    "products bf16": [MODES, "-k", "own_products and dtype1"],
    "products fp32": [MODES, "-k", "own_products and dtype0"],
    "products fp16": [MODES, "-k", "own_products and dtype2"],
    "scatters, settings": [MODES, "-k", "scatter or deterministic or float32_products or choices"],
    "recordings": ["tests/cudagraphs"],
    "launches": ["tests/triton_kernels/test_launches.py", "-m", "not gpu"],
    "models": [FIRST, "-k", "not test_operators"],
    "gradients": [FIRST, "-k", "gradients"],
    "operators fp32": [FIRST, "-k", "test_operators and float32 and not gradients"],
    "operators bf16": [FIRST, "-k", "test_operators and bfloat16"],
}

#: Run afterwards, with the device to itself: what it asks for depends on times.
ALONE = {
    "modes": [MODES, "-k", "not (own_products or scatter or deterministic or float32_products or choices)"],
}

#: The rows that matter most come first: time may end before them all.
ROWS = (
    "BERT-base 16x128",
    "Llama-style bf16 1x2048",
    "resnet18 16x224x224",
    "BERT-base 1x12",
    "training BERT-base 16x128",
    "training resnet18 16x224x224",
    "GPT-2 4x512",
    "resnet18 1x64x64",
    "training densenet121 16x128x128",
    "cos+sin 10,000",
)

COMPILERS = ("ours", "ours:max-autotune")


def checks(some: dict[str, list[str]], seconds: float, out: Path) -> dict[str, str]:
    """Name of each check -> the last line of its output. They run at the same time."""
    running = {}
    for name, arguments in some.items():
        log = open(out / f".{name.replace(' ', '_')}.log", "w+")  # noqa: SIM115
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            *arguments,
        ]
        running[name] = (subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log), log)
    end, lines, texts = time.monotonic() + seconds, {}, []
    for name, (process, log) in running.items():
        try:
            process.wait(max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.flush()
        log.seek(0)
        text = log.read()
        log.close()
        os.unlink(log.name)
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        last = text.strip().splitlines()[-1:] or ["nothing"]
        lines[name] = last[0][:110] + (f" (code {process.returncode})" if process.returncode else "")
        texts.append(f"=== {name}\n" + text[-12_000:] + "\n".join(failed))
    with open(out / "checks.txt", "a") as stream:
        stream.write("\n\n".join(texts))
    return lines


def rows(seconds: float, out: Path, cache: Path, names: list[str], compilers: list[str]) -> str:
    """The table of `benchmarks.gpu`."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--rows", *names, "--compilers", *compilers]
    command += ["--out", str(out / "gpu.json"), "--seconds", str(seconds)]
    environment = {**os.environ, "TRACER_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if line.startswith("|")) or (done.stdout + done.stderr)[-2000:]


def choices(out: Path, cache: Path) -> str:
    """What max-autotune measured, and where a kernel of ours won."""
    found: list[dict[str, Any]] = []
    for file in sorted(cache.glob("triton_choices/*.json")):
        found.append(json.loads(file.read_text()))
    (out / "choices.json").write_text(json.dumps(found, indent=1))
    lines = []
    for choice in found:
        times = choice["milliseconds"]
        ours = {name: t for name, t in times.items() if name != "aten"}
        if "aten" in times and ours:
            best = min(ours, key=ours.__getitem__)
            lines.append(
                f"{times['aten']:.4f} -> {ours[best]:.4f} ms ({choice['chosen']} won; best of ours: {best}) {choice['what'][:90]}"
            )
    tiles = [c for c in found if "aten" not in c["milliseconds"] and c["milliseconds"]]
    gains = [
        c["milliseconds"]["0"] / min(c["milliseconds"].values()) for c in tiles if "0" in c["milliseconds"]
    ]
    if gains:
        lines.append(f"{len(gains)} tiles measured; quickest over first: at most {max(gains):.2f} times")
    return "\n".join(lines[-24:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--checks", type=float, default=170, help="seconds of them for the checks")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--compilers", nargs="*", default=list(COMPILERS))
    chosen = parser.parse_args()
    started = time.monotonic()
    out = Path(os.environ.get("OUT") or ROOT / "benchmarks" / "results" / "gpu")
    cache = Path("/tmp/gpu_session_cache")
    cache.mkdir(mode=0o700, exist_ok=True)
    (out / "checks.txt").unlink(missing_ok=True)
    found = {}
    if chosen.checks > 0:
        found = checks(CHECKS, 0.65 * chosen.checks, out) | checks(ALONE, 0.35 * chosen.checks, out)
    left = chosen.seconds - (time.monotonic() - started) - 5
    table = rows(left, out, cache, chosen.rows, chosen.compilers)
    print(choices(out, cache))
    for name, line in found.items():
        print(f"{name}: {line}")
    print(table)


if __name__ == "__main__":
    main()
