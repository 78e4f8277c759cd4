"""What an integer Conv takes by its parts: the section `integer_conv` of a target's table.

    python tests/bench/measure_columns.py

One thread; kernel times come from onnxruntime's profiler. The parts are those of least squares of relative errors; what
they miss by is printed, too.
"""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
from kernel_turns import least_times
from measure_nodes import conv_model

CHANNELS, FILTERS, WINDOWS, SIDES = (4, 8, 12, 16, 32, 64), (16, 32, 64, 128), (3, 5), (32, 64)
PARTS = ("start", "position", "tap", "channels", "filters")
NOTE = """\
# A Conv on codes by its parts, nanoseconds: for each position of the output and 64 filters, for
# each place of a window among these, for each four channels of a place, and for each 16 filters of these. By {count}
# shapes, missed by {typical:.0f} % (median), at most {most:.0f} %. Used as ratios only: optimize/fold_columns.py"""


def conv_parts() -> list[str]:
    """Measure, and give the lines of the section."""
    rows, times = [], []
    for channels, filters, window, side in product(CHANNELS, FILTERS, WINDOWS, SIDES):
        feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
        model = conv_model(channels, filters, window, side, 1, quantized=True)
        times.append(least_times(model, feeds)["QLinearConv"])
        passes, taps, fours = -(-filters // 64), window * window, channels / 4
        positions = side * side * np.array([passes, taps * passes, taps * fours * passes, taps * fours * filters / 16])
        rows.append([1.0, *positions])
        print("integer_conv", channels, filters, window, side, round(times[-1] / 1000, 1), file=sys.stderr)
    relative = np.array(rows) / np.array(times)[:, None]
    parts = not_negative(relative)
    missed = 100 * np.abs(relative @ parts - 1)
    note = NOTE.format(count=len(times), typical=np.median(missed), most=missed.max())
    return ["[integer_conv]", note, *(f"{n} = {v:.4g}" for n, v in zip(PARTS, parts, strict=True)), ""]


def not_negative(relative: np.ndarray) -> np.ndarray:
    """Return the parts of least squared error of `relative @ parts = 1`; one below 0 is left out, the least first."""
    parts, used = np.zeros(relative.shape[1]), list(range(relative.shape[1]))
    while used:
        found = np.linalg.lstsq(relative[:, used], np.ones(len(relative)), rcond=None)[0]
        if found.min() >= 0:
            parts[used] = found
            break
        used.pop(int(found.argmin()))
    return parts


if __name__ == "__main__":
    print("\n".join(conv_parts()))
