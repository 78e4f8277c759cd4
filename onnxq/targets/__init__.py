"""Kernel times of a runtime, as data with sources: TOML tables made by `tests/bench/measure_target.py`.

Plans use these times in `planning`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from functools import cache
from typing import Any

from onnxq.targets.grid import TIMES, LogGrid
from onnxq.targets.mixed import mixed
from onnxq.targets.powers import exp2, log2
from onnxq.targets.tables import read_target, table_name
from onnxq.targets.timings import Kernel, Timings

DEFAULT = "cpu"  # the target where none is asked for
UNKNOWN_SIDE = 56  # what a spatial dimension is taken for that the model leaves open
FEWEST_CHANNELS = 3  # of the table of windows
GROUPS = 16  # side by side in the table of them
# A Conv of one axis: positions that the float product computes at least, and nanoseconds to unfold a place of a window.
# The ratio of both times is missed by a factor of 1.3 (median), at most 3.0, over 17 shapes. By the tables of Convs of
# two axes that was 1.5, and up to 5.5. Intel Xeon of the Sapphire Rapids kind, onnxruntime 1.32, 25 November 2026
LEAST_POSITIONS, UNFOLDING = 16, 0.3
# Such a Conv of single channels is a product for each channel in float, not a kernel of blocks. A channel, a tap, and a
# tap at a position take as long as so many multiplications of a depthwise Conv of two axes. Fitted to 36 shapes on AMD
# Zen 4, 26 November 2026. The ratio of both times is missed by 2.3 (median), at most 5.7; small ones gain more than
# that. By the table of two axes it was 4.1 and 19
EACH_CHANNEL, EACH_TAP, EACH_PLACE = 2200, 154, 2.5
IN_CACHE = (256, 784)  # channels and pixels
CACHED = 1 << 20  # elements of a tensor that a core's cache holds, 4 MB in float


class Costs:
    """Kernel times of one target, interpolated from its table.

    Times are nanoseconds on one thread of the machine that made the table. Only their ratios are meant to carry over:
    they decide where 8 bit pays, and being data they decide the same on every machine.

    Args:
        table: As in the TOML file.
        timings: Times measured elsewhere; those of the table are scaled to that machine.
        shapes: Of tensors whose dimensions a model leaves open, by name.

    Attributes:
        scale: What kernels take by what the table says.
        prices: Nanoseconds that are added to a node's time in 8 bit where a plan decides, by `node_key`.

    """

    def __init__(
        self,
        table: dict[str, Any],
        timings: Timings | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.table = table
        self.timings = timings
        self._known: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = {}
        self._grids: dict[str, LogGrid] = {}
        self.shapes = shapes or {}
        self.scale = timings.scale if timings is not None else 1.0
        self.prices: Mapping[str, float] = {}
        self.borders: dict[str, float] = {
            kind: time * self.scale for kind, time in table["borders"].items() if kind != "source"
        }

    @property
    def basis(self) -> tuple[object, ...]:
        """All that times come from, prices left out."""
        return self.table, self.timings, self.shapes

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> Costs:
        """Return the same times for a model with these shapes; what was interpolated is shared."""
        made = copy(self)
        made.shapes = shapes
        return made

    def with_prices(self, prices: Mapping[str, float]) -> Costs:
        """Return the same times for plans in which 8 bit has a price for some nodes."""
        made = copy(self)
        made.prices = prices
        return made

    def measured(self, kernel: Kernel | None) -> tuple[float, float] | None:
        """Return the times of a kernel that was measured on its own."""
        return None if self.timings is None or kernel is None else self.timings.kernels.get(kernel)

    def conv(
        self, channels: int, filters: int, kernel: int, pixels: int, group: int, *, axes: int = 2
    ) -> tuple[float, float]:
        """Return the time of one Conv in float and in 8 bit.

        Args:
            channels: Input channels, all groups together.
            filters: Output channels.
            kernel: Elements of the kernel's window.
            pixels: Positions of the output, all batches together.
            group: Number of groups.
            axes: That its window goes along.

        """
        if group > 1 and group == channels:
            times = self._interpolate("depthwise", (filters, pixels))
            if axes == 1:
                return self._channel_products(times, filters, kernel, pixels)
            return times[0] * kernel / 9, times[1] * kernel / 9
        computed = self._whole_block(filters, kernel) if group == 1 else max(filters // group, 1)
        shape = (max(channels // group, 1), computed, pixels)
        if kernel == 1:
            in_float, in_integers = self._interpolate("pointwise", shape)
            return in_float * group, in_integers * group
        if group > 1:  # a kernel that computes several groups is started once, and each is a small product
            times = self._interpolate("grouped", (round(math.sqrt(shape[0] * shape[1])), pixels))
            return times[0] * group / GROUPS * kernel / 9, times[1] * group / GROUPS * kernel / 9
        # integer kernels take channels by four
        in_integers = self._interpolate("spatial", (max(shape[0], FEWEST_CHANNELS), *shape[1:]))[1] * kernel / 9
        if axes == 1:
            return self._unfolded(in_integers, channels * kernel, filters, kernel, pixels)
        return self._interpolate("spatial", shape)[0] * kernel / 9, in_integers

    def _channel_products(
        self, two_axes: tuple[float, float], filters: int, kernel: int, pixels: int
    ) -> tuple[float, float]:
        """Return the times of a depthwise Conv of one axis by those of two axes and windows of 3 x 3.

        Codes take the same kernel, half of whose time goes with the window. Float unfolds and multiplies each channel.
        """
        one = self._interpolate("depthwise", IN_CACHE)[0] / (math.prod(IN_CACHE) * 9)
        in_float = one * filters * (EACH_CHANNEL + kernel * (EACH_TAP + EACH_PLACE * pixels))
        return max(two_axes[0] * kernel / 9, in_float), two_axes[1] * (9 + kernel) / 18

    def _whole_block(self, filters: int, kernel: int) -> int:
        """Return how many filters a kernel computes for a few: a block of channels, the least of the table.

        One filter takes what sixteen do. 64 channels of 56 x 56 and windows of 3 x 3 take 0.46 ms in float, and 0.18 in
        8 bit. Intel Xeon (Sapphire Rapids), onnxruntime 1.32, 26 November 2026. Kernels without blocks take less.
        """
        least: int = self.table["pointwise" if kernel == 1 else "spatial"]["filters"][0]
        return max(filters, least) if self.borders["Reorder"] > 0 else filters

    def _unfolded(self, in_integers: float, inner: int, filters: int, kernel: int, pixels: int) -> tuple[float, float]:
        """Return the time of a Conv of one axis, whose windows onnxruntime unfolds and multiplies with the weight.

        It copies whole rows of wide windows in 8 bit: that takes less time than as many places of two axes.
        """
        unfolded = self.matmul(pixels, inner, filters)[1] + self.scale * UNFOLDING * kernel * pixels
        return self.matmul(filters, inner, max(pixels, LEAST_POSITIONS))[0], min(in_integers, unfolded)

    def integer_conv(self, positions: int, taps: int, channels: int, filters: int) -> float:
        """Return the time of an integer Conv by its parts.

        Right to a tenth in relation to other forms of the same Conv.

        Args:
            positions: Of the output.
            taps: Elements of the window.
            channels: Input channels, a multiple of four.
            filters: Output channels.

        """
        parts = self.table["integer_conv"]
        sixteens, passes = -(-filters // 16), -(-filters // 64)
        tap = passes * parts["tap"] + channels / 4 * (passes * parts["channels"] + sixteens * parts["filters"])
        return self.scale * float(parts["start"] + positions * (passes * parts["position"] + taps * tap))

    def matmul(self, rows: int, inner: int, columns: int) -> tuple[float, float]:
        """Return the time of a product `[rows, inner] @ [inner, columns]` with float output in float and in 8 bit."""
        return self._interpolate("matmul", (rows, inner, columns))

    def recurrent(self, steps: int, batch: int, inputs: int, hidden: int, gates: int) -> tuple[float, float]:
        """Return the time of a recurrent layer in float and in 8 bit.

        The table is of an LSTM, four gates, with as many inputs as units. Fewer inputs take as long as square products
        with as many weights. More of them are a product over all steps at once, for which a table of products stands.

        Args:
            steps: Length of the sequence.
            batch: Sequences side by side.
            inputs: Values that go in at each step.
            hidden: Units.
            gates: Of each unit, all directions together.

        """
        rows, runs = steps * batch, steps * gates / 4
        at_once = inputs > hidden and rows > 1
        side = hidden if at_once else max(round(math.sqrt(hidden * (inputs + hidden) / 2)), 1)
        in_float, in_integers = (time * runs for time in self._interpolate("recurrent", (batch, side)))
        if at_once:
            long, short = (self.matmul(rows, inner, gates * hidden) for inner in (inputs, hidden))
            in_float += long[0] - short[0]
            in_integers += long[1] - short[1] + self.moved("QuantizeLinear", (inputs - hidden) * rows)
        return in_float, in_integers + self.scale * float(self.table["recurrent"]["start"])

    def elementwise(self, op_type: str, elements: int) -> tuple[float, float]:
        """Return the time of an operator without weights in float and in 8 bit; the default is for moving values."""
        per_float, per_integer = self.table["elementwise"].get(op_type, (0.08, 0.02))
        return per_float * elements * self.scale, per_integer * elements * self.scale

    def clamp(self, op_type: str, elements: int) -> float:
        """Return the time of a Relu or Clip that onnxruntime computes with the float Conv in front of it."""
        return float(self.table["clamps"][op_type]) * elements * self.scale

    def border(self, elements: int, *, into_integers: bool) -> float:
        """Return the time of a border: the conversion, and the change of layout around a Conv."""
        kind = "QuantizeLinear" if into_integers else "DequantizeLinear"
        return self.moved(kind, elements) + self.moved("Transpose", elements) + self.borders["conversion"]

    def moved(self, kind: str, elements: int) -> float:
        """Return the time of a conversion or a change of layout; a tensor that leaves the cache takes longer.

        Args:
            kind: QuantizeLinear, DequantizeLinear, Transpose or Reorder.
            elements: Of the tensor.

        """
        return self.borders[kind] * elements + self.borders["beyond"] * max(elements - CACHED, 0)

    def reorder(self, elements: int) -> float:
        """Return the time of the change of layout of a float Conv on one side of a border."""
        return self.moved("Reorder", elements)

    def reading(self, elements: int) -> float:
        """Return the time of the conversion to float alone, which onnxruntime repeats for every reader."""
        return self.moved("DequantizeLinear", elements) + self.borders["node"]

    def _interpolate(self, name: str, point: tuple[int, ...]) -> tuple[float, float]:
        """Interpolate, once for each kernel: every plan asks for the same ones."""
        key = name, point
        if key not in self._known:
            self._known[key] = self._interpolated(*key)
        return self._known[key]

    def _interpolated(self, name: str, point: tuple[int, ...]) -> tuple[float, float]:
        """Interpolate linearly in the logarithms of sizes and times; outside the table its edges are continued.

        Below the table, a time is at most that at its edge, and at least the least of all times. Sizes hardly matter
        there, and extrapolated slopes would add up to nonsense.
        """
        if name not in self._grids:
            self._grids[name] = LogGrid(self.table[name], TIMES)
        grid = self._grids[name]
        place = [log2(max(size, 1)) for size in point]
        edge = [max(position, start) for position, start in zip(place, grid.starts, strict=True)]
        total = grid.at(place)
        if edge != place:
            within = map(min, total, grid.at(edge))
            total = list(map(max, within, grid.least))
        return self.scale * exp2(total[0]), self.scale * exp2(total[1])


def load_costs(target: str = DEFAULT) -> Costs:
    """Read the kernel times of a target that comes with onnxq.

    Args:
        target: Its name. Where no times are known of it, those of the default target stand for them: they only rank
            nodes there, and leave none in float.

    """
    return _loaded(table_name(target))


@cache
def _loaded(name: str) -> Costs:
    table = read_target(name)
    if "borders" in table:
        return Costs(table)
    mixes = load_mixes(name)
    return mixes[0] if mixes else _loaded(DEFAULT)


@cache
def load_mixes(name: str) -> tuple[Costs, ...]:
    """Read the mixes of families' kernel times by which a target is planned, the usual one first; () if by one."""
    shares = read_target(table_name(name)).get("mix", {}).get("shares", ())
    return tuple(Costs(mixed({family: read_target(family) for family in mix}, mix)) for mix in shares)


def families_of(name: str) -> tuple[str, ...]:
    """Return the families of processors that a target is for: of a family, itself."""
    name = table_name(name)
    return tuple(read_target(name).get("mix", {}).get("families", (name,)))


def is_estimated(family: str) -> bool:
    """Return whether the kernel times of a family are derived and not measured."""
    return str(read_target(family)["matmul"]["source"]).startswith("estimated")
