"""What an integer Conv takes by its parts: the section `integer_conv` of a target's table.

    python tests/bench/measure_columns.py

One thread; kernel times come from onnxruntime's profiler. The parts are those of least squares of relative errors; what
they miss by is printed, too.
"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
from measure_nodes import conv_model

from onnxq.quant.benchmark import kernel_times

CHANNELS, FILTERS, WINDOWS, SIDES = (4, 8, 12, 16, 32, 64), (16, 32, 64, 128), (3, 5), (32, 64)
PARTS = ("start", "position", "tap", "channels", "filters")
NOTE = """\
# A Conv on codes by its parts, nanoseconds on another processor: for each position of the output and 64 filters, for
# each place of a window among these, for each four channels of a place, and for each 16 filters of these. By {count}
# shapes, missed by {typical:.0f} % (median), at most {most:.0f} %. Used as ratios only: onnxq/quant/columns.py"""


def conv_parts() -> list[str]:
    """Measure, and give the lines of the section."""
    rows, times = [], []
    for channels, filters, window, side in product(CHANNELS, FILTERS, WINDOWS, SIDES):
        feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
        model = conv_model(channels, filters, window, side, 1, quantized=True)
        times.append(kernel_times(model, feeds, 0.25)["QLinearConv"])
        passes, taps, fours = -(-filters // 64), window * window, channels / 4
        positions = side * side * np.array([passes, taps * passes, taps * fours * passes, taps * fours * filters / 16])
        rows.append([1.0, *positions])
        print("integer_conv", channels, filters, window, side, round(times[-1] / 1000, 1), file=sys.stderr)
    relative = np.array(rows) / np.array(times)[:, None]
    parts = np.linalg.lstsq(relative, np.ones(len(times)), rcond=None)[0]
    missed = 100 * np.abs(relative @ parts - 1)
    note = NOTE.format(count=len(times), typical=np.median(missed), most=missed.max())
    return ["[integer_conv]", note, *(f"{n} = {v:.4g}" for n, v in zip(PARTS, parts, strict=True)), ""]


if __name__ == "__main__":
    print("\n".join(conv_parts()))
