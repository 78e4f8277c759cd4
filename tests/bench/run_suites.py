"""Run the tests whose outcome depends on kernels as on older processors, and print a line for each package.

    python tests/bench/run_suites.py                                  # masked as avx2 and as sse41
    python tests/bench/run_suites.py --families avx2 --packages ops rounding
    python tests/bench/run_suites.py --families armv8 --packages ops --emulator ./emulate

Families are those of `as_processor.py`. With `--emulator`, the command `EMULATOR FAMILY ARGUMENTS-OF-PYTHON` runs the
tests instead, under QEMU for instance. Failures stand below the line of their package; exit code 1 then.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from as_processor import available, environment

TESTS = Path(__file__).parents[1]
PACKAGES = ("ops", "evaluator", "verification", "rounding", "search")  # what they hold depends on kernels
FAMILIES = ("avx2", "sse41")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


def run(package: str, family: str, emulator: Sequence[str] = ()) -> bool:
    """Run the tests of a package on a family of processors, and print how they ended; whether all passed.

    Args:
        package: A folder of `tests`.
        family: As `as_processor.py` or the emulator names it.
        emulator: A command that takes the family and arguments of Python; () to mask CPUID.

    """
    arguments = [*PYTEST, str(TESTS / package)]
    command = [*emulator, family, *arguments] if emulator else [sys.executable, *arguments]
    began = time.monotonic()
    env = None if emulator else environment(family)
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    lines = ended.stdout.strip().splitlines() or ended.stderr.strip().splitlines() or [""]
    print(f"{family:12} {package:13} {time.monotonic() - began:6.0f} s  {lines[-1].strip('= ')}", flush=True)
    if ended.returncode:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(failed or lines[-20:]), flush=True)
    return ended.returncode == 0


def main() -> int:
    """Run every package on every family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--emulator", default="", help="a command that runs Python on a FAMILY")
    given = parser.parse_args()
    emulator = shlex.split(given.emulator)
    unknown = [family for family in given.families if not emulator and not available(family)]
    if unknown:
        print(f"this machine cannot run as {', '.join(unknown)}: name an emulator", file=sys.stderr)
        return 2
    passed = [run(package, family, emulator) for family in given.families for package in given.packages]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
