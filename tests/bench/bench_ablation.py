"""What each method is worth: every model quantized with each one turned off in turn, judged on data it has not seen.

    python tests/bench/bench_ablation.py [--only VARIANT...] [FOLDER] [NAME...]

FOLDER holds `models/*.onnx`, and for each model by the beginning of its name `data/NAME_calib.npz` and
`data/NAME_eval.npz`; by default the models that the tests use. A flat folder holds `NAME.onnx` and data of these names,
files or folders. Prints a Markdown table of the SQNR of the worst output in dB, which depends on no clock. Nothing is
written outside of a temporary folder. A VARIANT is one of the rows; `--` ends them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import onnxq
from onnxq.data.samples import input_specs, open_samples
from onnxq.ir.shape_inference.types import infer_types
from onnxq.planning.recipe import Recipe, load_recipe
from onnxq.verification.compare import compare

DEFAULT = Path(__file__).parents[2] / "../shared/arena"
JUDGED = 48  # samples
AUTO = load_recipe("auto")
VARIANTS: dict[str, Recipe] = {
    "everything": AUTO,
    "the model as it was exported": replace(AUTO, simplify=False),
    "no rescaling of channels": AUTO.setting(smoothing=False),
    "weights to nearest": AUTO.setting(rounding="nearest"),
    "no bias correction": AUTO.setting(bias_correction=False),
    "nothing returned to float": AUTO.setting(return_to_float=False),
    "8 bit wherever it is possible": replace(load_recipe("static-int8"), name="auto"),
    "ranges from least to greatest": AUTO.setting(ranges="minmax"),
    "ranges by output error": AUTO.setting(ranges="output-error"),
    "ranges by squared error": AUTO.setting(ranges="mse"),
}


def tasks(folder: Path, names: list[str]) -> dict[str, tuple[Path, Path, Path]]:
    found = {}
    if not (folder / "models").is_dir():
        for model in sorted(folder.glob("*.onnx")):
            data = [next(iter(folder.glob(f"{model.stem}_{part}*")), None) for part in ("calib", "eval")]
            if data[0] is not None and data[1] is not None and (not names or model.stem in names):
                found[model.stem] = model, data[0], data[1]
        return found
    for calibration in sorted((folder / "data").glob("*_calib.npz")):
        name = calibration.name.removesuffix("_calib.npz")
        models = [
            path for path in (folder / "models").glob("*.onnx") if name in path.name or path.stem.startswith(name)
        ]
        models = models or [
            path for path in (folder / "models").glob("*.onnx") if name[:5] in path.name.replace("_", "")
        ]
        if models and (not names or name in names):
            found[name] = models[0], calibration, folder / "data" / f"{name}_eval.npz"
    return found


def score(model: Path, calibration: Path, evaluation: Path, recipe: Recipe, scratch: Path) -> float:
    output = scratch / "q.onnx"
    onnxq.quantize(model, recipe, output=output, data=[calibration], force=True)
    reference = onnxq.load(model)
    infer_types(reference)
    samples = open_samples([evaluation], input_specs(reference)).limit(JUDGED)
    return compare(model, output, samples, latency=False).worst_sqnr


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("given", nargs="*")
    arguments = parser.parse_args()
    given = arguments.given
    folder = Path(given.pop(0)) if given and Path(given[0]).is_dir() else DEFAULT
    found = tasks(folder, given)
    if not found:
        print(f"{folder} holds no models with data", file=sys.stderr)
        return 2
    print("| | " + " | ".join(found) + " |\n|---|" + "---:|" * len(found), flush=True)
    for label in arguments.only:
        recipe = VARIANTS[label]
        cells = []
        for model, calibration, evaluation in found.values():
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as scratch:
                cells.append(f"{score(model, calibration, evaluation, recipe, Path(scratch)):.1f}")
            print(f"{label}: {model.name} {cells[-1]} dB, {time.perf_counter() - started:.0f} s", file=sys.stderr)
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
