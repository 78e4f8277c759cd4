"""Run Python natively as if on an older x86-64 processor: libraries choose the kernels that they have for it.

    python tests/bench/as_processor.py avx2 -m pytest -n 2        # FAMILY PYTHON-ARGS…
    python tests/bench/as_processor.py --command avx2 onnxq …     # any other program

Families: `vnni` (no AMX), `avx512` (no VNNI either), `avx2` and `sse41`. Results are exact. Times are those of such
kernels on this processor, which says more than an emulator, and less than a processor of that family.

Needs Linux on an x86-64 processor that can trap CPUID (Intel since Ivy Bridge) and has what the family needs, and a C
compiler. Other families: QEMU. onnxruntime, NumPy and OpenBLAS ask CPUID for their kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("mask_cpuid.c")
FAMILIES = ("vnni", "avx512", "avx2", "sse41")
CANNOT_TRAP = 119  # exit code of the library


def library() -> Path:
    """Compile the library that is preloaded, once for each version of its source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"mask_cpuid-{os.getuid()}-{digest}.so"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as made:
            command = ["cc", "-O2", "-Wall", "-shared", "-fPIC", str(SOURCE), "-o", made.name, "-ldl"]
            subprocess.run(command, check=True)
        os.replace(made.name, path)
    return path


def environment(family: str) -> dict[str, str]:
    """Return the environment in which programs take this processor for one of `family`."""
    preloaded = " ".join(filter(None, (str(library()), os.environ.get("LD_PRELOAD", ""))))
    return {**os.environ, "LD_PRELOAD": preloaded, "MASK_CPUID": family}


def available(family: str) -> bool:
    """Whether this machine can run the kernels of `family` natively, masked."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return False
    try:
        made = environment(family)
    except (OSError, subprocess.CalledProcessError):
        return False
    return subprocess.run([sys.executable, "-c", ""], env=made, check=False).returncode == 0


def main() -> int:
    """Run the program in place of this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", action="store_true", help="ARGS are a command rather than arguments of Python")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not available(given.family):
        print("this machine cannot trap CPUID, or has no C compiler; emulate the processor instead", file=sys.stderr)
        return 2
    command = given.args if given.command else [sys.executable, *given.args]
    return os.execvpe(command[0], command, environment(given.family))


if __name__ == "__main__":
    sys.exit(main())
