"""Digests of the models that quantize writes, so that a change of structure can prove that no byte of output changed.

    python tests/bench/bench_digests.py before.json                      # sample models and node tests of onnx
    python tests/bench/bench_digests.py before.json --pairs FOLDER…      # and FOLDER/NAME.onnx with NAME_calib.npz
    python tests/bench/bench_digests.py after.json --against before.json

Node tests are quantized without data. Exit code 1 where a digest differs. A model that is refused is recorded by its
error, for the sentence is an output, too. `--models` and `--data` name two folders where data lie elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.backend.test.case.node import collect_testcases

import onnxq

SAMPLES = Path(__file__).parents[2] / "sample_models"


def _data_of(model: Path, folder: Path) -> Path | None:
    names = (f"{model.stem}_calib.npz", f"{model.stem}_calib", f"{model.stem}.npz")
    return next((folder / name for name in names if (folder / name).exists()), None)


def _node_tests(most: int, folder: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """Write models of onnx's node tests, spread evenly over their names, into a folder."""
    found = {case.name: case.model for case in collect_testcases(None) if case.model is not None}
    for name in sorted(found)[:: max(1, len(found) // most)][:most]:
        onnx.save(found[name], folder / f"{name}.onnx")
        yield f"node {name}", folder / f"{name}.onnx", None


def _cases(given: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path, Path | None]]:
    """Yield (name, model, data); node tests are spread evenly over all that the onnx package has."""
    for model in sorted(SAMPLES.glob("*.onnx")):
        yield f"sample {model.stem}", model, SAMPLES / "digits_calibration.npz"
    yield from _node_tests(given.nodes, scratch)
    for folder in given.pairs:
        for model in sorted(folder.glob("*.onnx")):
            yield f"{folder.name} {model.stem}", model, _data_of(model, folder)
    for model in sorted(given.models.glob("*.onnx")) if given.models else ():
        yield f"{given.models.name} {model.stem}", model, _data_of(model, given.data)


def _digest(model: Path, data: Path | None, output: Path, fast: bool) -> str:
    """Quantize one model; return the SHA-256 of the file, or the error that was raised."""
    try:
        onnxq.quantize(model, data=[data] if data else (), output=output, fast=fast, force=True)
    except onnxq.OnnxqError as error:
        return f"refused: {error}".replace(str(model), model.name)
    return hashlib.sha256(output.read_bytes()).hexdigest()


def main() -> int:
    """Digest every model, write the list, compare it with an earlier one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digests", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--pairs", type=Path, nargs="*", default=[])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--fast", action="store_true")
    given = parser.parse_args()
    known = json.loads(given.digests.read_text()) if given.digests.exists() else {}
    before = json.loads(given.against.read_text()) if given.against else {}
    different = 0
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model, data in _cases(given, Path(scratch)):
            if name in known:
                continue
            known[name] = _digest(model, data, Path(scratch) / "quantized.onnx", given.fast)
            given.digests.write_text(json.dumps(known, indent=0))
            if name in before and before[name] != known[name]:
                different += 1
                print(f"DIFFERENT {name}\n  {before[name]}\n  {known[name]}", flush=True)
    print(f"{len(known)} models, {len(before.keys() & known.keys())} compared, {different} different")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
