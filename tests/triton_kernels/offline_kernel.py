"""Compiles one kernel, given as JSON (the fields of `Kernel`), to machine code for devices that are
not there. Runs in a process without TRITON_INTERPRET; prints, by capability, what is in its PTX.
"""

from __future__ import annotations

import json
import sys

from inductor_backend.runtime.cuda.triton_compile import Kernel, compiled, target_of


def main() -> None:
    kernel = Kernel(**json.loads(sys.argv[1]))
    report = {}
    for capability in (80, 90):
        assembly = compiled(kernel, target_of(capability)).asm
        report[str(capability)] = {
            "target": f".target sm_{capability}" in assembly["ptx"],
            "shuffles": assembly["ptx"].count("shfl.sync"),
            "bytes": len(assembly["cubin"]),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
