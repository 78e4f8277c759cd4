"""Derive the tables of Arm families, which were not at hand, from what their kernels' instructions take.

    python tests/bench/estimate_arm.py cpu-arm64        # and cpu-armv8: writes onnxq/targets/NAME.toml's tables

Throughput is that of Arm's software optimization guides (Cortex-A76: PJDOC-466751330-7215, Cortex-A72: UAN 0016A),
kernels are those of onnxruntime 1.32 in `core/mlas/lib/aarch64`:

* float: FMLA of four lanes, two each cycle on A76, one on A72;
* with dot products: UDOT and SDOT, sixteen products each, two each cycle on A76;
* without: smull and smlal of eight products into 16 bits, one each cycle, and sadalp in the other pipe meanwhile.

A product takes what its instructions take, divided by the share of the peak that such kernels reach, what its weights
take from memory (one row reads each once), and a start; integers also what turns sums into codes. A Conv in float makes
a matrix of its windows first. What has no products (conversions, sums, pools) is 128 bits wide in onnxruntime on x86-64
with AVX2, too, or nearly: its times by that table, by the clock and the width of the core; and so are the parts of an
integer Conv. Ratios, which alone decide, are those of onnxruntime's own kernels to perhaps a third.
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from onnxq.targets import GROUPS
from onnxq.targets.grid import grid_axes

TARGETS = Path(__file__).parents[2] / "onnxq" / "targets"
SAME = "cpu-avx2"  # whose operators without products are as wide
FLOAT_SHARE, INTEGER_SHARE = 0.75, 0.6  # of the peak; integers also pack the activation and add up its rows
START = 3000.0  # nanoseconds that the profiler shows for the smallest kernel
BESIDE = 800.0  # more for one of integers, by what the smallest take on x86-64: sums of rows, scales, memory for codes


@dataclass(frozen=True)
class Core:
    """What one core does.

    Attributes:
        name: Of the family.
        core: Of the processor.
        clock: Cycles in a nanosecond.
        floats: Products of floats in a cycle.
        integers: Products of 8 bits in a cycle.
        bytes: From memory in a nanosecond.
        others: Time of what has no products by that on x86-64.

    """

    name: str
    core: str
    clock: float
    floats: float
    integers: float
    bytes: float
    others: float


CORES = [
    Core("cpu-arm64", "Cortex-A76 at 2.4 GHz", 2.4, 8, 32, 12, 1.5),
    Core("cpu-armv8", "Cortex-A72 at 1.8 GHz", 1.8, 4, 8, 4, 2.5),
]


def gemm(core: Core, rows: int, inner: int, columns: int, *, start: float = START) -> tuple[float, float]:
    """Return nanoseconds of a product in float and in 8 bit with what turns sums into results."""
    in_float = rows * inner * 4 * math.ceil(columns / 4) / (core.clock * core.floats * FLOAT_SHARE)
    products = rows * 4 * math.ceil(inner / 4) * 8 * math.ceil(columns / 8)
    in_integers = products / (core.clock * core.integers * INTEGER_SHARE)
    made = rows * columns * 0.12 * core.others + rows * inner * 0.05 * core.others
    read = inner * columns / core.bytes
    beside = BESIDE * core.others if start else 0.0
    return start + max(in_float, 4 * read), start + beside + max(in_integers, read) + made


def conv(core: Core, channels: int, filters: int, window: int, pixels: int) -> tuple[float, float]:
    """Return the same of a Conv, which in float copies its windows first and in 8 bit points at them."""
    in_float, in_integers = gemm(core, pixels, channels * window, filters)
    copied = channels * window * pixels * 0.1 * core.others if window > 1 else 0.0
    return in_float + copied, in_integers


def depthwise(core: Core, channels: int, pixels: int) -> tuple[float, float]:
    """Return the same of nine products an element: FMLA in float; in 8 bit two widening steps for as many lanes."""
    steps = channels * pixels * 9 / (4 * core.clock * core.floats / 4)
    made = BESIDE * core.others + channels * pixels * 0.15 * core.others
    return START + steps / FLOAT_SHARE, START + steps / INTEGER_SHARE + made


def recurrent(core: Core, batch: int, hidden: int) -> tuple[float, float]:
    """Return the same of a step of an LSTM."""
    in_float, in_integers = gemm(core, batch, 2 * hidden, 4 * hidden, start=0)
    gates = batch * hidden * 2.0 * core.others
    return 150 + in_float + gates, 250 + in_integers + gates


def grids(core: Core, like: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return the times of all tables over sizes, on the axes of another target."""

    def points(name: str) -> Any:
        return product(*grid_axes(like[name]).values())

    found = {"pointwise": [conv(core, c, f, 1, p) for c, f, p in points("pointwise")]}
    found["spatial"] = [conv(core, c, f, 9, p) for c, f, p in points("spatial")]
    found["depthwise"] = [depthwise(core, *point) for point in points("depthwise")]
    found["grouped"] = [_grouped(core, *point) for point in points("grouped")]
    found["matmul"] = [gemm(core, *point) for point in points("matmul")]
    found["recurrent"] = [recurrent(core, *point) for point in points("recurrent")]
    return found


def _grouped(core: Core, channels: int, pixels: int) -> tuple[float, float]:
    in_float, in_integers = conv(core, channels, channels, 9, pixels)
    beside = BESIDE * core.others
    in_integers = START + beside + GROUPS * (in_integers - START - beside + 300)
    return START + GROUPS * (in_float - START + 300), in_integers


def written(core: Core, like: dict[str, Any]) -> str:
    """Return the text of all tables."""
    source = f'source = "estimated for {core.core} by tests/bench/estimate_arm.py from instruction throughput"'
    lines: list[str] = []
    for name, times in grids(core, like).items():
        lines += ["", f"[{name}]", source]
        lines += [f"{key} = {value}" for key, value in grid_axes(like[name]).items()]
        lines += [f"{key} = {[round(pair[i]) for pair in times]}" for i, key in enumerate(("float", "integer"))]
        lines += ["start = 1000"] * (name == "recurrent")
    for name in ("integer_conv", "borders", "rows", "elementwise", "clamps", "floats"):
        scaled = [_scaled(key, value, core) for key, value in like[name].items() if key != "source"]
        lines += ["", f"[{name}]", source, *scaled]
    return "\n".join(lines).strip() + "\n"


def _scaled(key: str, value: float | list[float], core: Core) -> str:
    if key == "Reorder":
        return "Reorder = 0.0  # its float Conv has no blocks of channels"
    if isinstance(value, list):
        return f"{key} = {[round(one * core.others, 4) for one in value]}"
    return f"{key} = {round(value * core.others, 4) if value < 100 else round(value * core.others)}"


def main() -> None:
    """Write the tables of the family that is named."""
    (core,) = (one for one in CORES if one.name == sys.argv[1])
    like = tomllib.loads((TARGETS / f"{SAME}.toml").read_text())
    path = TARGETS / f"{core.name}.toml"
    kept = re.split(r"^\[pointwise\]$", path.read_text(), maxsplit=1, flags=re.MULTILINE)[0].rstrip()
    path.write_text(f"{kept}\n\n{written(core, like)}")


if __name__ == "__main__":
    main()
