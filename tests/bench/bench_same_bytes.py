"""Whether the same command writes the same bytes on every processor: models quantized natively and masked.

    python tests/bench/bench_same_bytes.py                              # the five sample models
    python tests/bench/bench_same_bytes.py --models FOLDER --data FOLDER NAME…

With folders: `MODELS/NAME.onnx` and `DATA/NAME.npz`, or `NAME_calib.npz`, or a folder `NAME_calib`; `NAME:OTHER`
where data have another name. `--no-data` reads none. Families are those of `as_processor.py`. `--keep FOLDER` leaves
every file and what the command printed there, by the model's name and the family. Exit code 1 where bytes differ.
Times are seconds of processor time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from as_processor import available, environment

SAMPLES = Path(__file__).parents[2] / "sample_models"
NATIVE = "native"
FAMILIES = (NATIVE, "avx2", "sse41")


def digest(model: Path, data: Path | None, family: str, options: Sequence[str] = (), keep: Path | None = None) -> str:
    """Quantize a model as if on a processor of a family, in a process of its own; return the SHA-256 of the file.

    Raises:
        subprocess.CalledProcessError: `onnxq quantize` fails.

    """
    made = dict(os.environ) if family == NATIVE else environment(family)
    with tempfile.TemporaryDirectory() as folder:
        output = (keep or Path(folder)) / f"{model.stem}.{family}.onnx"
        command = [sys.executable, "-m", "onnxq", "quantize", str(model), "--output", str(output)]
        command += ["--data", str(data)] if data is not None else []
        command += ["--force"] if keep is not None else []
        done = subprocess.run([*command, *options], env=made, check=True, capture_output=True)
        if keep is not None:
            output.with_suffix(".log").write_bytes(done.stdout + done.stderr)
        return hashlib.sha256(output.read_bytes()).hexdigest()


def _found(models: Path, data: Path, names: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    for each in names:
        name, _, other = each.partition(":")
        given = [data / f"{other or name}{ending}" for ending in (".npz", "_calib.npz", "_calib")]
        yield models / f"{name}.onnx", next((path for path in given if path.exists()), given[0])


def _row(model: Path, data: Path | None, families: Sequence[str], options: Sequence[str], keep: Path | None) -> bool:
    """Print the digests of one model; whether they are equal."""
    digests, times = [], []
    for family in families:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        digests.append(digest(model, data, family, options, keep))
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    same = len(set(digests)) == 1
    columns = (f"{digest[:12]} {time:6.1f} s" for digest, time in zip(digests, times, strict=True))
    print(f"{model.stem:20}{'  '.join(columns)}  {'the same' if same else 'DIFFERENT'}", flush=True)
    return same


def main() -> int:
    """Quantize every model on every family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", type=Path, default=SAMPLES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--no-data", action="store_true", help="quantize without any")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--options", default="", help="further options of `onnxq quantize`")
    parser.add_argument("--keep", type=Path, help="a folder for the files and what was printed")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    families = [family for family in given.families.split(",") if family == NATIVE or available(family)]
    print(f"{'':20}{'  '.join(f'{family:21}' for family in families)}")
    if given.data is None:
        pairs = [(path, SAMPLES / "digits_calibration.npz") for path in sorted(SAMPLES.glob("*.onnx"))]
        pairs = [pair for pair in pairs if not given.names or pair[0].stem in given.names]
    else:
        pairs = list(_found(given.models, given.data, given.names))
    options = given.options.split()
    same = [_row(model, None if given.no_data else data, families, options, given.keep) for model, data in pairs]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
