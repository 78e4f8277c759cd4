"""The same command writes the same bytes on every processor, with any hash seed and any number of threads."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from as_processor import available, environment
from bench_same_bytes import NATIVE, SAMPLES
from numpy._core._multiarray_umath import __cpu_features__ as features

from onnxq.targets.host import host_saturates

NAMES = ["digits_depthwise", "digits_lstm"]
# A processor with AVX2 alone, masked as one, runs the same kernels once more
ITSELF = "avx2" if host_saturates() and not features["AVX512F"] else ""
FAMILIES = [family for family in ("avx2", "sse41") if family != ITSELF and available(family)]
PROGRAM = """
import sys
from onnxq.cli import main
data, *models = sys.argv[1:]
for source, output in zip(models[::2], models[1::2]):
    assert main(["quantize", source, "--data", data, "--output", output, "--samples", "24"]) == 0
"""  # one process: to load what is needed takes as long as a model


def digests(family: str, folder: Path, number: int) -> list[str]:
    """Quantize the models as if on a processor of a family; return the SHA-256 of the files.

    The hash seed and the number of threads are others in each run, too.
    """
    made = [folder / f"{name}.{number}.onnx" for name in NAMES]
    models = [path for name, output in zip(NAMES, made, strict=True) for path in (SAMPLES / f"{name}.onnx", output)]
    variables = dict(os.environ) if family == NATIVE else environment(family)
    threads = str(1 + number % 2)
    variables |= {"PYTHONHASHSEED": str(number), "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    command = [sys.executable, "-c", PROGRAM, SAMPLES / "digits_calibration.npz", *models]
    subprocess.run(command, env=variables, check=True, capture_output=True)
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in made]


def test_processors_hash_seeds_and_threads_write_the_same_bytes(tmp_path: Path) -> None:
    """Where this machine cannot mask CPUID, only the seeds and threads differ."""
    families = [NATIVE, *(FAMILIES or [NATIVE])]
    native, *others = (digests(family, tmp_path, number) for number, family in enumerate(families))
    assert others == [native] * len(others)


def built(family: str, folder: Path) -> str:
    """Build a model of a project as if on a processor of a family; return the SHA-256 of the file."""
    home = folder / family
    home.mkdir()
    for name in ("digits_cnn.onnx", "digits_calibration.npz"):
        (home / name).symlink_to(SAMPLES / name)
    entry = '[[models]]\nfloat = "digits_cnn.onnx"\ndata = ["digits_calibration.npz"]\nfast = true\nsamples = 24\n'
    (home / "onnxq.toml").write_text(entry)
    variables = dict(os.environ) if family == NATIVE else environment(family)
    subprocess.run(
        [sys.executable, "-m", "onnxq", "quantize"], cwd=home, env=variables, check=True, capture_output=True
    )
    return hashlib.sha256((home / "digits_cnn.int8.onnx").read_bytes()).hexdigest()


@pytest.mark.skipif(not FAMILIES, reason="this machine cannot mask CPUID")
def test_processors_build_the_same_bytes_for_a_project(tmp_path: Path) -> None:
    assert built(NATIVE, tmp_path) == built(FAMILIES[-1], tmp_path)
