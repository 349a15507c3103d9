"""The table of one call on a GPU: ``python -m benchmarks.gpu_call FILE`` (a file of
`benchmarks.gpu`).

A line for each measurement, then how ours stands beside torch.compile's of the same row and lease:
times of theirs over ours (above 1: ours is quicker), memory of ours over theirs (below 1: ours
holds less). `beyond` is what recordings and results that stay valid cost: MiB taken from the device
in a step, less the peak of a call that is not recorded; `at rest` is taken while nobody holds a
result or a gradient, `left` after the compiled object was dropped (above what was there before it).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: mode of ours -> the modes of torch.compile that it is held against.
BESIDE = {
    "ours": ("torch", "torch:reduce-overhead"),
    "ours:reduce-overhead": ("torch:reduce-overhead",),
    "ours:max-autotune": ("torch:max-autotune",),
}

#: title -> key of `benchmarks.gpu`.
MEMORY = {
    "plain": "plain_peak_MiB",
    "peak": "peak_MiB",
    "steady": "steady_peak_MiB",
    "held": "steady_reserved_MiB",
    "at rest": "at_rest_MiB",
    "left": "left_MiB",
}


def lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    titles = " ".join(f"{title:>7}" for title in (*MEMORY, "beyond"))
    found = [
        f"{'row @ compiler':58} {'ms':>8} {'in a row':>8} {'first s':>7} {titles} {'error':>7}"
    ]
    for name, row in rows.items():
        if "problem" in row:
            found.append(f"{name:58} {str(row['problem']).strip()[-60:]!r}")
            continue
        cells = [
            f"{row['latency_ms']:8.3f}",
            f"{row['back_to_back_ms']:8.3f}",
            f"{row['first_s'] or 0:7.1f}",
        ]
        cells += [f"{row.get(key) or 0:7.0f}" for key in MEMORY.values()] + [f"{_beyond(row):7.0f}"]
        found.append(f"{name:58} {' '.join(cells)} {row['error']:7.0e}")
    for name, row in rows.items():
        case, _, mode = name.rpartition(" @ ")
        for other in BESIDE.get(mode, ()):
            theirs = rows.get(f"{case} @ {other}", {"problem": ""})
            if "problem" not in row and "problem" not in theirs:
                found.append(
                    f"{case}: {mode} beside {other}: {theirs['latency_ms'] / row['latency_ms']:.2f}"
                    f" (in a row {theirs['back_to_back_ms'] / row['back_to_back_ms']:.2f}), peak"
                    f" {row['peak_MiB'] / theirs['peak_MiB']:.2f}, held"
                    f" {row['steady_reserved_MiB'] / theirs['steady_reserved_MiB']:.2f}, beyond a"
                    f" call's own peak {_beyond(row):.0f} and {_beyond(theirs):.0f} MiB"
                )
    return found


def _beyond(row: dict[str, Any]) -> float:
    """MiB that are held beyond the peak of one plain call; 0 where an older file does not say."""
    held, plain = row["steady_reserved_MiB"], row.get("plain_peak_MiB")
    return 0.0 if plain is None else float(held - plain)


def main() -> None:
    path = Path(sys.argv[1])
    print(
        "\n".join(lines(json.loads(path.read_text())["rows"]))
        if path.exists()
        else f"{path.name}: nothing was measured"
    )


if __name__ == "__main__":
    main()
