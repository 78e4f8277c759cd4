"""Measure what onnxruntime's kernels take on this processor, and write all tables of a family into its file.

    chrt -f 50 taskset -c 1 python tests/bench/measure_target.py onnxq/targets/cpu-vnni.toml --processor "AMD Zen 4"
    … --only matmul recurrent          # these tables; the others of the file stay
    python tests/bench/measure_target.py onnxq/targets/web.toml --web --processor "AMD Zen 4"    # in onnxruntime-web

One thread; kernel times come from onnxruntime's profiler, forms of one kernel in turn, the fastest quarter of the runs
and the least of three rounds, so that neither the borders around a kernel nor other work on the machine is counted.
`chrt` and `taskset` keep others from the core. Times are nanoseconds. All tables take some five minutes. A family that
is not at hand but that this processor can do: `python tests/bench/as_processor.py avx2 tests/bench/measure_target.py …`
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from kernel_turns import Measuring, least_times, turns
from measure_columns import conv_parts
from measure_nodes import (
    clamp,
    conv_model,
    conversion_time,
    elementwise,
    float_times,
    max_pooling,
    node_time,
    ramps,
    resizing,
    silu,
    weight_codes,
)
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_web import WebEngine

from onnxq.ir import infer_types, parse
from onnxq.lowering.rewrite import rewrite
from onnxq.optimize.pad_channels import pad_channels
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe
from onnxq.targets import CACHED, GROUPS
from onnxq.targets.target import load_target

POINTWISE = ((8, 16, 32, 64, 128, 512), (8, 16, 32, 64, 128, 512), (7, 28, 112))
SPATIAL = ((3, 8, 16, 32, 64, 256), (8, 16, 32, 64, 256), (7, 28, 112))
MATMUL = ((1, 4, 16, 64, 256), (64, 256, 1024), (64, 256, 1024))
DEPTHWISE = ((16, 32, 64, 128, 256), (7, 14, 28, 56, 112, 224))
GROUPED = ((2, 4, 8, 16, 32, 64), (4, 8, 16, 32))
RECURRENT = ((1, 8), (16, 32, 64, 128, 256))
BORDERED = ((32, 28), (32, 112), (128, 28), (128, 112))  # channels and sides of the Convs between borders
FAR = (128, 192)  # of a map that leaves the cache
STEPS = 64
FORMS = ("float", "integer")
Times = dict[str, float]


def measure(channels: int, filters: int, kernel: int, side: int, group: int = 1) -> list[float]:
    """Give the nanoseconds of one Conv: in float, and in 8 bit with int8 weights."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
    model = parse(conv_model(channels, filters, kernel, side, group, quantized=True))
    # types are not inferred: with a width that is open, no columns are folded
    pad_channels(model, load_target(Measuring.engine.target))
    in_float, in_integers = turns(
        [conv_model(channels, filters, kernel, side, group, quantized=False), model.serialize()], feeds
    )
    times = [in_float["Conv"], in_integers["QLinearConv"]]
    print(channels, filters, kernel, side, group, [round(t / 1000, 1) for t in times], file=sys.stderr)
    return times


def pointwise() -> list[str]:
    """Measure Convs of windows of one element."""
    axes = (*POINTWISE[:2], sides(POINTWISE[2]))
    times = [measure(channels, filters, 1, side) for channels, filters, side in product(*axes)]
    return table({"channels": axes[0], "filters": axes[1], "pixels": squares(axes[2])}, times)


def spatial() -> list[str]:
    """Measure Convs of windows of 3 x 3."""
    axes = (*SPATIAL[:2], sides(SPATIAL[2]))
    times = [measure(channels, filters, 3, side) for channels, filters, side in product(*axes)]
    return table({"channels": axes[0], "filters": axes[1], "pixels": squares(axes[2])}, times)


def depthwise() -> list[str]:
    """Measure depthwise Convs of windows of 3 x 3."""
    axes = (DEPTHWISE[0], sides(DEPTHWISE[1]))
    times = [measure(channels, channels, 3, side, channels) for channels, side in product(*axes)]
    return table({"channels": axes[0], "pixels": squares(axes[1])}, times)


def grouped() -> list[str]:
    """Measure Convs of several groups."""
    times = [measure(channels * GROUPS, channels * GROUPS, 3, side, GROUPS) for channels, side in product(*GROUPED)]
    note = f"# {GROUPS} groups of so many channels and filters, windows of 3 x 3"
    return [note, *table({"channels": GROUPED[0], "pixels": squares(GROUPED[1])}, times)]


def products() -> list[str]:
    """Measure products with float output."""
    times = [matmul(*point) for point in product(*MATMUL)]
    return table({"rows": MATMUL[0], "inner": MATMUL[1], "columns": MATMUL[2]}, times)


def layers() -> list[str]:
    """Measure a step of recurrent layers, and what 8 bit takes besides."""
    found = [recurrent(*point) for point in product(*RECURRENT)]
    lines = table({"batch": RECURRENT[0], "hidden": RECURRENT[1]}, [pair for pair, _ in found])
    start = max(float(np.median([start for _, start in found])), 0.0)
    return [*lines, f"start = {start:.0f}  # nanoseconds more for 8 bit, however few the steps"]


def borders() -> list[str]:
    """Measure conversions and changes of layout."""
    found = [border_times(*shape) for shape in BORDERED]
    costs = {kind: float(np.median([times[kind] for times in found])) for kind in found[0]}
    far, elements = border_times(*FAR), FAR[0] * FAR[1] ** 2
    more = np.mean([far[kind] - costs[kind] for kind in costs if costs[kind]]) * elements / (elements - CACHED)
    node, conversion = node_time(), conversion_time()
    sentence = f"for a conversion and the changes of layout on both sides of it: {conversion / node:.1f} nodes"
    return [
        "# nanoseconds per element; Transpose is the change of layout around an integer Conv, Reorder around a float",
        *(f"{kind} = {taken:.4f}" for kind, taken in costs.items()),
        f"node = {node:.0f}  # nanoseconds for one more node, however small its tensor",
        f"conversion = {conversion:.0f}  # {sentence}",
        f"beyond = {max(more, 0.0):.2f}  # more for each element beyond 2^20, out of the cache",
    ]


def border_times(channels: int, side: int) -> dict[str, float]:
    """Measure conversions and changes of layout of one map, nanoseconds per element."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
    models = [conv_model(channels, channels, 1, side, 1, quantized=quantized) for quantized in (False, True)]
    floats, integers = turns(models, feeds)
    elements = channels * side**2
    times = {kind: integers[kind] / elements for kind in ("QuantizeLinear", "DequantizeLinear", "Transpose")}
    return {**times, "Transpose": times["Transpose"] / 2, "Reorder": floats.get("ReorderOutput", 0.0) / elements}


@cache
def mul() -> tuple[float, float]:
    """Give the times of a Mul per element."""
    in_float, in_integers = elementwise("Mul")
    return in_float, in_integers


def elements() -> list[str]:
    """Measure operators without weights."""
    kinds = ("Add", "Concat", "AveragePool", "LeakyRelu", "Sigmoid")
    times = {kind: elementwise(kind) for kind in kinds} | {"Mul": list(mul())} | ramps(list(mul()))
    times |= {"MaxPool": max_pooling(), "Resize": resizing(2), "Resize_other": resizing(3)}
    times |= {"SiLU": silu()}
    note = "# nanoseconds per element of the first input, or that a Resize gives: float, integer"
    return [note, *(f"{kind} = {pair}" for kind, pair in times.items())]


def clamps() -> list[str]:
    """Measure what a clamp takes that is computed with a Conv."""
    note = "# nanoseconds per element behind a float Conv: its kernel does a Relu on the way, a Clip in its own pass"
    return [note, *(f"{kind} = {clamp(kind)}" for kind in ("Relu", "Clip"))]


def floats() -> list[str]:
    """Measure operators that compute in float."""
    note = "# nanoseconds per element of the output, of what computes in float: for predictions of whole models only"
    return [note, *(f"{kind} = {time}" for kind, time in float_times().items())]


TABLES: dict[str, Callable[[], list[str]]] = {
    "pointwise": pointwise,
    "spatial": spatial,
    "integer_conv": lambda: conv_parts()[1:-1],
    "depthwise": depthwise,
    "grouped": grouped,
    "matmul": products,
    "recurrent": layers,
    "borders": borders,
    "rows": lambda: row_table()[1:],
    "elementwise": elements,
    "clamps": clamps,
    "floats": floats,
}


def main() -> None:
    """Measure the tables that were asked for, and put them into the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, help="onnxq/targets/NAME.toml; what it says of placement stays")
    parser.add_argument("--processor", required=True, help="the model, and what of it is masked")
    parser.add_argument("--web", action="store_true", help="measure onnxruntime-web in Node: onnxruntime_web.py")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    given = parser.parse_args()
    if given.web:
        Measuring.engine = WebEngine()
    for name in given.only:
        made = datetime.datetime.now(tz=datetime.UTC).date()
        source = f'source = "measured on {given.processor}, {Measuring.engine.describe()}, {made}"'
        lines = [f"[{name}]", source, *TABLES[name]()]
        text = given.file.read_text()
        section = re.compile(rf"^\[{name}\]\n.*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
        body = "\n".join(line for line in lines if line)
        left = section.sub("", text).rstrip()
        given.file.write_text(f"{left}\n\n{body}\n")
        print(name, "done", file=sys.stderr)


def sides(usual: tuple[int, ...]) -> tuple[int, ...]:
    """Give the sides of maps that Convs are measured on."""
    return (*Measuring.engine.small, *usual)


def squares(sides: tuple[int, ...]) -> list[int]:
    """Give the areas of squares."""
    return [side * side for side in sides]


def recurrent(batch: int, hidden: int) -> tuple[list[float], float]:
    """Give `[float ns, integer ns]` of a step of an LSTM with as many inputs as units, and what 8 bit takes besides."""
    random = np.random.default_rng(0)
    w, r = (random.uniform(-1, 1, (1, 4 * hidden, hidden)).astype(np.float32) / hidden**0.5 for _ in range(2))
    codes = [np.rint(a * 127).astype(np.int8).transpose(0, 2, 1).copy() for a in (w, r)]
    scale, zero = np.full((1, 4 * hidden), 1 / 127, np.float32), np.zeros((1, 4 * hidden), np.int8)
    bias = np.zeros((1, 8 * hidden), np.float32)
    forms: list[tuple[str, str, dict[str, np.ndarray], list[str]]] = [
        ("", "LSTM", {"w": w, "r": r, "b": bias}, ["x", "w", "r", "b"]),
        (
            "com.microsoft",
            "DynamicQuantizeLSTM",
            {"w": codes[0], "r": codes[1], "b": bias, "s": scale, "z": zero},
            ["x", "w", "r", "b", "", "", "", "", "s", "z", "s", "z"],
        ),
    ]
    times = np.zeros((2, 2))
    for row, (domain, kind, constants, reads) in enumerate(forms):
        for column, steps in enumerate((1, STEPS + 1)):
            x = random.standard_normal((steps, batch, hidden)).astype(np.float32)
            graph = helper.make_graph(
                [helper.make_node(kind, reads, ["y"], domain=domain, hidden_size=hidden)],
                "lstm",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps, 1, batch, hidden])],
                [numpy_helper.from_array(array, name) for name, array in constants.items()],
            )
            opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
            model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
            times[row, column] = least_times(model.SerializeToString(), {"x": x})[kind]
    step = (times[:, 1] - times[:, 0]) / STEPS
    starts = times[:, 0] - step
    return [float(t) for t in step], float(starts[1] - starts[0])


def matmul(rows: int, inner: int, columns: int, bits: int = 8) -> list[float]:
    """Give the nanoseconds of a MatMul with a constant weight and a float output, in the forms of `FORMS`."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((inner, columns)).astype(np.float32)
    models = []
    for form in FORMS:
        if form != "float":
            constants = {
                "scale": np.array(0.05, np.float32),
                "zero": np.array(128, np.uint8),
                "w8": weight_codes(weight, bits),
                "ws": np.full(columns, 0.02, np.float32),
                "wz": np.zeros(columns, np.int8),
            }
            nodes = [
                helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
                helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
                helper.make_node("DequantizeLinear", ["w8", "ws", "wz"], ["w"], axis=1),
                helper.make_node("MatMul", ["xd", "w"], ["y"]),
            ]
        else:
            constants = {"w": weight}
            nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        graph = helper.make_graph(
            nodes,
            "matmul",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
            [numpy_helper.from_array(a, n) for n, a in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        models.append(model.SerializeToString())
    found = turns(models, {"x": random.standard_normal((rows, inner)).astype(np.float32)})
    times = [found[0]["MatMul"], *(each["MatMulIntegerToFloat"] for each in found[1:])]
    print("matmul", rows, inner, columns, [round(t / 1000, 1) for t in times], file=sys.stderr)
    return times


def row_model(op_type: str, shape: list[int], weight: tuple[int, ...], *, rows: bool) -> bytes:
    """A MatMul or Conv that onnxq turns into a product with a scale for every row, or for the whole activation."""
    array = np.random.default_rng(0).standard_normal(weight).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"])],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(array, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = parse(proto.SerializeToString())
    infer_types(model)
    recipe = load_recipe("dynamic-int8").setting(activation_granularity="row" if rows else "tensor")
    return bytes(rewrite(model, make_plan(model, recipe, with_data=False), {}).serialize())


def row_table() -> list[str]:
    """Give what a scale for every row takes besides the product: by element of what is read, made, and in a window."""
    random = np.random.default_rng(1)

    def beside(op_type: str, shape: list[int], weight: tuple[int, ...]) -> float:
        """Time around a product and its conversion to 8 bit; the least of several measurements."""
        feeds, skipped = {"x": random.standard_normal(shape).astype(np.float32)}, ("MatMulInteger", "Transpose")
        model = row_model(op_type, shape, weight, rows=True)
        found = least_times(model, feeds)
        kept = {kind for kind in found if kind not in skipped and (op_type == "Conv" or kind != "QuantizeLinear")}
        return sum(found[kind] for kind in kept)

    rows, inner, columns, positions = 256, (1024, 64), (64, 1024), 5
    sizes = [[rows * k, rows * n] for k, n in zip(inner, columns, strict=True)]
    times = [beside("MatMul", [1, rows, k], (k, n)) for k, n in zip(inner, columns, strict=True)]
    read, made = np.linalg.solve(np.array(sizes, np.float64), np.array(times))
    length, channels = rows + positions - 1, 256
    whole = beside("Conv", [1, channels, length], (64, channels, positions))
    # of what is read, a Conv takes the maxima only; what is multiplied and rounded are its windows
    window = (whole - made * 64 * rows - read / 2 * channels * length) / (rows * channels * positions)
    lines = ["[rows]", "# a scale for every row: nanoseconds beside the product, per element"]
    return [*lines, *(f"{key} = {value:.4f}" for key, value in (("read", read), ("made", made), ("window", window)))]


def table(axes: dict[str, object], times: list[list[float]]) -> list[str]:
    """Write the axes of a table, and the times with the last axis running fastest."""
    lines = [f"{key} = {list(values)}" for key, values in axes.items()]
    found = zip(FORMS, zip(*times, strict=True), strict=False)
    return lines + [f"{form} = {[round(time) for time in column]}" for form, column in found]


if __name__ == "__main__":
    main()
