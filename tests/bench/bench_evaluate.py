"""Time the reference evaluator against onnxruntime (one thread, optimisations off) and onnx.reference.

Run as a script: `python tests/bench/bench_evaluate.py [--quick]`; `--quick` leaves onnx.reference out.
Prints a table of times in milliseconds, of ratios, and of the largest difference relative to the largest output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from onnxq.evaluator import Evaluator
from onnxq.runtime.blas_threads import single_threaded_blas

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
ARENA = Path(__file__).resolve().parents[3] / "shared/arena"
TASKS = {  # data file, samples at a time
    "chargpt": ("chargpt", 4),
    "digits_mbv2": ("digits", 16),
    "magika_v3_3": ("magika", 4),
    "minilm": ("minilm", 8),
    "super_resolution": ("superres", 1),
    "ultraface_rfb320": ("face", 1),
}
Feeds = Mapping[str, np.ndarray]


def session(path: Path, *, optimise: bool = False) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ramp(shape: list[int]) -> np.ndarray:
    """Numbers from 0 to 1 in order: the input that onnx's own test runner gives the light models."""
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def light_models() -> list[tuple[Path, Feeds]]:
    found = []
    for path in sorted(LIGHT.glob("*.onnx")):
        model = onnx.load(path)
        weights = {w.name for w in model.graph.initializer}
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
        feeds = {name: ramp(shape) for name, shape in shapes.items() if name not in weights}
        found.append((path, feeds))
    return found


def arena_models() -> list[tuple[Path, Feeds]]:
    found = []
    for name, (task, batch) in TASKS.items():
        path, data = ARENA / f"models/{name}.onnx", ARENA / f"data/{task}_eval.npz"
        if path.exists() and data.exists():
            with np.load(data) as arrays:
                found.append((path, {k: arrays[k][:batch] for k in arrays.files if not k.startswith("_")}))
    return found


def best(run: Callable[[], object], seconds: float = 1.0) -> float:
    """Shortest time in milliseconds over as many runs as fit, one at least."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def difference(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest difference relative to the largest magnitude of each output."""
    return max(
        float(np.abs(g.astype(np.float64) - e).max() / max(np.abs(e).max(), 1e-30))
        for g, e in zip(got, expected, strict=True)
    )


def time_reference(path: Path, feeds: Feeds) -> float:
    """Time of onnx.reference in milliseconds, NaN where it fails; one BLAS thread, or a busy machine slows it down."""
    evaluator = ReferenceEvaluator(str(path))
    try:
        with single_threaded_blas():
            return best(lambda: evaluator.run(None, dict(feeds)), 0.5)
    except Exception as error:  # whatever NumPy raises inside
        print(f"onnx.reference fails on {path.stem}: {error}", file=sys.stderr)
        return float("nan")


def measure(title: str, models: list[tuple[Path, Feeds]], *, reference: bool) -> None:
    print(f"\n{title}\n{'model':26}{'ours':>9}{'ort':>9}{'ratio':>7}{'ref':>10}{'ref/ours':>9}{'difference':>12}")
    rows = []
    for path, feeds in models:
        evaluator, engine = Evaluator(path), session(path)
        gap = difference(list(evaluator.run(feeds).values()), engine.run(None, dict(feeds)))
        ours = best(lambda: evaluator.run(feeds))  # noqa: B023
        theirs = best(lambda: engine.run(None, dict(feeds)))  # noqa: B023
        slow = time_reference(path, feeds) if reference else float("nan")
        rows.append((ours, theirs, slow))
        print(f"{path.stem:26}{ours:9.2f}{theirs:9.2f}{ours / theirs:7.1f}{slow:10.1f}{slow / ours:9.1f}{gap:12.1e}")
    ours, theirs = sum(row[0] for row in rows), sum(row[1] for row in rows)
    both = [(o, s) for o, _, s in rows if s == s]
    ratio = sum(s for _, s in both) / sum(o for o, _ in both) if both else float("nan")
    print(f"{'total':26}{ours:9.1f}{theirs:9.1f}{ours / theirs:7.1f}{sum(s for _, s in both):10.1f}{ratio:9.1f}")


def main() -> None:
    reference = "--quick" not in sys.argv
    measure("Six real models", arena_models(), reference=reference)
    measure("Light models of the onnx package", light_models(), reference=reference)


if __name__ == "__main__":
    main()
