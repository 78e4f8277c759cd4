"""Time integer convolutions as they are quantized and as onnxq fills up or folds their channels, in turn.

    python tests/bench/bench_conv_channels.py

One thread; the median time of QLinearConv alone, the least of the quarters of the runs, and of the whole model.
"""

from __future__ import annotations

import numpy as np
from in_turn import model_times
from measure_nodes import conv_model

from onnxq.ir import infer_types, parse
from onnxq.optimize.optimize import optimize_for_target
from onnxq.planning.benchmark import kernel_times

CASES = (  # channels, filters, window, side, groups
    (32, 9, 3, 224, 1),
    (32, 16, 3, 224, 1),
    (64, 3, 3, 56, 1),
    (256, 12, 3, 28, 1),
    (64, 30, 1, 56, 1),
    (3, 64, 3, 112, 1),
    (3, 64, 7, 112, 1),
    (1, 64, 5, 224, 1),
    (1, 16, 3, 112, 1),
)
RUNS = 25


def main() -> None:
    heads = {"channels": 9, "filters": 8, "window": 7, "side": 5, "kernel µs": 18, "ratio": 7, "model µs": 18}
    print("".join(f"{name:>{width}}" for name, width in heads.items()) + "  ratio")
    for channels, filters, window, side, groups in CASES:
        before = conv_model(channels, filters, window, side, groups, quantized=True)
        model = parse(before)
        infer_types(model)
        after = optimize_for_target(model, "cpu").serialize()
        feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
        kernels = [kernel_times(each, feeds)["QLinearConv"] / 1e3 for each in (before, after)]
        whole = model_times(before, after, feeds, RUNS)
        figures = "".join(f"{a:10.0f} {b:7.0f}{b / a:7.2f}" for a, b in (kernels, whole))
        print(f"{channels:9}{filters:8}{window:7}{side:5}{figures}")


if __name__ == "__main__":
    main()
