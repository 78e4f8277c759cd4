"""Run Python natively as if on an older x86-64 processor: libraries choose the kernels that they have for it.

    python tests/bench/as_processor.py avx2 -m pytest -n 2        # FAMILY PYTHON-ARGS…
    python tests/bench/as_processor.py --command avx2 onnxq …     # any other program

Families: `vnni` (no AMX), `avx512` (no VNNI either), `avx2` and `sse41`. Results are exact. Times are those of such
kernels on this processor, which says more than an emulator, and less than a processor of that family.

Needs Linux on an x86-64 processor that has what the family needs, and a C compiler. onnxruntime, NumPy and OpenBLAS ask
CPUID for their kernels. A process may be unable to trap that instruction, as on AMD Zen 4. It is then replaced in
onnxruntime and NumPy, where `objdump` finds it; OpenBLAS gets its variable OPENBLAS_CORETYPE. Other families: QEMU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("mask_cpuid.c")
FAMILIES = ("vnni", "avx512", "avx2", "sse41")
CANNOT_TRAP = 119  # exit code of the library
ASKING = {"onnxruntime": "capi/onnxruntime_pybind11_state*.so", "numpy": "_core/_multiarray_umath*.so"}
OPENBLAS = {"vnni": "SkylakeX", "avx512": "SkylakeX", "avx2": "Haswell", "sse41": "Nehalem"}


def library() -> Path:
    """Compile the library that is preloaded, once for each version of its source."""
    path = _cached(hashlib.sha256(SOURCE.read_bytes()).hexdigest(), ".so")
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".so", delete=False) as made:
            command = ["cc", "-O2", "-Wall", "-shared", "-fPIC", str(SOURCE), "-o", made.name, "-ldl"]
            subprocess.run(command, check=True)
        os.replace(made.name, path)
    return path


def sites() -> Path:
    """Disassemble libraries once for each version; return a file of all CPUID: an offset and a library a line."""
    asking = [path for package, pattern in ASKING.items() for path in sorted(_folder(package).glob(pattern))]
    versions = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in asking]
    path = _cached(hashlib.sha256(repr(versions).encode()).hexdigest(), ".sites")
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".sites", delete=False) as made:
            made.writelines(f"{offset} {each.name}\n" for each in asking for offset in _cpuid_offsets(each))
        os.replace(made.name, path)
    return path


def environment(family: str) -> dict[str, str]:
    """Return the environment in which programs take this processor for one of `family`."""
    preloaded = " ".join(filter(None, (str(library()), os.environ.get("LD_PRELOAD", ""))))
    made = {**os.environ, "LD_PRELOAD": preloaded, "MASK_CPUID": family}
    made.pop("MASK_CPUID_SITES", None)
    if _runs(made):
        return made
    return {**made, "MASK_CPUID_SITES": str(sites()), "OPENBLAS_CORETYPE": OPENBLAS[family]}


def _cached(digest: str, suffix: str) -> Path:
    return Path(tempfile.gettempdir()) / f"mask_cpuid-{os.getuid()}-{digest[:16]}{suffix}"


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nonexistent")


def _cpuid_offsets(path: Path) -> list[str]:
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--wide", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disassembly:
        assert disassembly.stdout is not None
        found = [line.partition(":")[0].strip() for line in disassembly.stdout if line.rstrip().endswith("cpuid")]
    if disassembly.returncode:
        raise subprocess.CalledProcessError(disassembly.returncode, command)
    return found


def _runs(made: dict[str, str]) -> bool:
    return subprocess.run([sys.executable, "-S", "-c", ""], env=made, check=False).returncode == 0


def available(family: str) -> bool:
    """Whether this machine can run the kernels of `family` natively, masked."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return False
    try:
        made = environment(family)
    except (OSError, subprocess.CalledProcessError):
        return False
    return _runs(made)


def main() -> int:
    """Run the program in place of this one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", action="store_true", help="ARGS are a command rather than arguments of Python")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not available(given.family):
        print("needs x86-64 with Linux, a C compiler and objdump; emulate the processor instead", file=sys.stderr)
        return 2
    command = given.args if given.command else [sys.executable, *given.args]
    return os.execvpe(command[0], command, environment(given.family))


if __name__ == "__main__":
    sys.exit(main())
