"""Programs that measure: each still finds all that it imports. What they measure takes too long for a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHES = Path(__file__).parent / "bench"
EXTRA = ("nncf",)  # packages that a bench alone needs
IMPORT_ALL = f"""
import runpy, sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("*.py")):
    before = list(sys.path)
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(str(path), run_name="imported")
        print(path.name)
    except ModuleNotFoundError as error:
        if error.name not in {EXTRA}:
            raise
    sys.path[:] = before
"""


def test_every_bench_can_be_imported() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(BENCHES)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.split()) > 30
