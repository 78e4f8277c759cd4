"""Time in onnxruntime what layer normalization and softmax take, spelled out and as `onnxq.simplify` writes them.

    python tests/bench/bench_normalization.py

Prints microseconds of a run before and after, and their ratio, for rows along the last axis and along others: there the
operator stands between two Transpose, which pays from about `LEAST_TURNED` elements on. CPU time of one thread, so that
other work on the machine hardly matters. The exit code is 1 where something that is written became slower.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import time

import numpy as np
from helpers import ALL, floats, session
from spelled_support import model_of

from onnxq.simplify import simplify
from onnxq.simplify.regions import reduction_region

RUNS = 60
LIMIT = 1.1
NORMALIZED = (
    "m = ReduceMean <axes = [{axis}]> (x) c = Sub(x, m) s = Mul(c, c) v = ReduceMean <axes = [{axis}]> (s)"
    " ve = Add(v, k)"
    " d = Sqrt(ve) r = Reciprocal(d) g = Mul(r, scale) p = Mul(x, g) q = Mul(m, g) o = Sub(shift, q) y = Add(p, o)"
)
SOFTMAX = (
    "m = ReduceMax <axes = [{axis}]> (x) c = Sub(x, m) e = Exp(c) t = ReduceSum <axes = [{axis}]> (e) y = Div(e, t)"
)
SHAPES = [(128, 768), (1, 512, 256), *((1, channels, 64, 64) for channels in (4, 8, 16, 32, 64))]


def seconds(models: list[bytes], x: np.ndarray) -> list[float]:
    """CPU seconds of a run of each model, the lower fifth of many; they take turns."""
    sessions = [session(model, ALL) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(RUNS):
        for one, taken in zip(sessions, times, strict=True):
            start = time.thread_time()
            one.run(None, {"x": x})
            taken.append(time.thread_time() - start)
    return [float(np.quantile(taken, 0.2)) for taken in times]


def main() -> int:
    least, reduction_region.LEAST_TURNED = reduction_region.LEAST_TURNED, 2  # to see what it spares
    slower = 0
    print(f"{'function':20} {'shape':18} {'axis':>4} {'us':>7} {'after':>7} {'ratio':>6}")
    for name, body in (("fuse_layer_normalization", NORMALIZED), ("fuse_softmax", SOFTMAX)):
        for shape in SHAPES:
            axis = 1
            lengths = [size if place == axis else 1 for place, size in enumerate(shape)]
            weights = {"k": np.float32(1e-6), "scale": floats(*lengths), "shift": floats(*lengths, seed=1)}
            dims = ",".join(map(str, shape))
            text = f"g (float[{dims}] x) => (float[{dims}] y) {{ {body.format(axis=axis)} }}"
            model = model_of(text, weights, 11)
            spelled = model.serialize()
            before, after = seconds(
                [spelled, simplify(model, [name, "softmax_last_axis"]).model.serialize()], floats(*shape)
            )
            print(f"{name:20} {dims:18} {axis:4} {before * 1e6:7.0f} {after * 1e6:7.0f} {after / before:6.2f}")
            slower += after > LIMIT * before and shape[axis] >= least
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
