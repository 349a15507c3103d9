"""The table of one call on a GPU: ``python -m benchmarks.gpu_call FILE`` (a file of `benchmarks.gpu`).

A line for each measurement, then how ours stands beside torch.compile's of the same row and lease: times of theirs over ours
(above 1: ours is quicker), memory of ours over theirs (below 1: ours holds less).
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


def lines(rows: dict[str, dict[str, Any]]) -> list[str]:
    found = [f"{'row @ compiler':58} {'ms':>8} {'in a row':>8} {'first s':>7} {'peak':>6} {'steady':>6} {'held':>6} {'error':>7}"]
    for name, row in rows.items():
        if "problem" in row:
            found.append(f"{name:58} {str(row['problem']).strip()[-60:]!r}")
            continue
        cells = [f"{row['latency_ms']:8.3f}", f"{row['back_to_back_ms']:8.3f}", f"{row['first_s'] or 0:7.1f}"]
        cells += [f"{row.get(key) or 0:6.0f}" for key in ("peak_MiB", "steady_peak_MiB", "steady_reserved_MiB")]
        found.append(f"{name:58} {' '.join(cells)} {row['error']:7.0e}")
    for name, row in rows.items():
        case, _, mode = name.rpartition(" @ ")
        for other in BESIDE.get(mode, ()):
            theirs = rows.get(f"{case} @ {other}", {"problem": ""})
            if "problem" not in row and "problem" not in theirs:
                found.append(
                    f"{case}: {mode} beside {other}: {theirs['latency_ms'] / row['latency_ms']:.2f} "
                    f"(in a row {theirs['back_to_back_ms'] / row['back_to_back_ms']:.2f}), "
                    f"memory {row['peak_MiB'] / theirs['peak_MiB']:.2f}"
                )
    return found


def main() -> None:
    path = Path(sys.argv[1])
    print("\n".join(lines(json.loads(path.read_text())["rows"])) if path.exists() else f"{path.name}: nothing was measured")


if __name__ == "__main__":
    main()
