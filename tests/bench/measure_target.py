"""Measure what onnxruntime's float and integer convolutions cost on this machine, and write the table of a target.

    python tests/bench/measure_target.py onnxq/targets/cpu.toml

One thread; kernel times come from onnxruntime's profiler, the fastest quarter of the runs, so that neither the borders
around a kernel nor other work on the machine is counted. Times are nanoseconds.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime as ort
from measure_columns import conv_parts
from measure_nodes import clamp, conv_model, conversion_time, elementwise, max_pooling, node_time, ramps, resizing, silu
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import infer_types, parse
from onnxq.quant.alignment import align
from onnxq.quant.benchmark import kernel_times
from onnxq.quant.plan import make_plan
from onnxq.quant.recipe import load_recipe
from onnxq.quant.rewrite import rewrite
from onnxq.targets import GROUPS
from onnxq.targets.placement import load_target

POINTWISE = ((8, 32, 128, 512), (8, 32, 128, 512), (7, 28, 112))
SPATIAL = ((3, 16, 64, 256), (16, 64, 256), (7, 28, 112))
MATMUL = ((1, 4, 16, 64, 256), (64, 256, 1024), (64, 256, 1024))
DEPTHWISE = ((16, 64, 256), (7, 28, 112, 224))
GROUPED = ((2, 4, 8, 16, 32, 64), (4, 8, 16, 32))
RECURRENT = ((1, 8), (16, 32, 64, 128, 256))
STEPS = 64
ELEMENTWISE_NOTE = "# nanoseconds per element of the first input, or that a Resize gives: float, integer"
CLAMPS_NOTE = (
    "# nanoseconds per element behind a float Conv: its kernel does a Relu on the way, and a Clip in a pass of its own"
)


def measure(
    channels: int, filters: int, kernel: int, side: int, group: int = 1
) -> tuple[list[float], dict[str, float]]:
    """Give `[float ns, integer ns]` of one Conv, and the cost of the borders of the integer one in ns per element."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
    floats = kernel_times(conv_model(channels, filters, kernel, side, group, quantized=False), feeds)
    model = parse(conv_model(channels, filters, kernel, side, group, quantized=True))
    align(model, load_target("cpu"))  # types are not inferred: with a width that is open, no columns are folded
    integers = kernel_times(model.serialize(), feeds)
    # what is behind the float Conv is as large as what the borders are counted on only with as many filters
    reorder = {"Reorder": floats.get("ReorderOutput", 0.0)} if channels == filters else {}
    return [floats["Conv"], integers["QLinearConv"]], dict(integers) | reorder


def main() -> None:
    target = Path(sys.argv[1])
    placement = target.read_text().partition("[placement]")[2].partition("[pointwise]")[0]  # written by hand
    out = [
        f"# Kernel times of onnxruntime {ort.__version__}, CPU, one thread, x86-64 with VNNI; nanoseconds.",
        "# Made by: python tests/bench/measure_target.py onnxq/targets/cpu.toml",
        "",
        f"[placement]{placement.rstrip()}",
        "",
    ]
    borders: list[tuple[int, dict[str, float]]] = []
    for name, axes in (("pointwise", POINTWISE), ("spatial", SPATIAL)):
        kernel = 1 if name == "pointwise" else 3
        times = []
        for channels, filters, side in product(*axes):
            pair, rest = measure(channels, filters, kernel, side)
            times.append(pair)
            borders.append((side * side * (channels + filters), rest))
            print(name, channels, filters, side, [round(t / 1000, 1) for t in pair], file=sys.stderr)
        out += table(name, {"channels": axes[0], "filters": axes[1], "pixels": [s * s for s in axes[2]]}, times)
    out += conv_parts()
    times = []
    for channels, side in product(*DEPTHWISE):
        pair, _ = measure(channels, channels, 3, side, channels)
        times.append(pair)
        print("depthwise", channels, side, [round(t / 1000, 1) for t in pair], file=sys.stderr)
    out += table("depthwise", {"channels": DEPTHWISE[0], "pixels": [s * s for s in DEPTHWISE[1]]}, times)
    times = []
    for channels, side in product(*GROUPED):
        pair, _ = measure(channels * GROUPS, channels * GROUPS, 3, side, GROUPS)
        times.append(pair)
        print("grouped", channels, side, [round(t / 1000, 1) for t in pair], file=sys.stderr)
    out += table("grouped", {"channels": GROUPED[0], "pixels": [s * s for s in GROUPED[1]]}, times)
    times = [matmul(*point) for point in product(*MATMUL)]
    out += table("matmul", {"rows": MATMUL[0], "inner": MATMUL[1], "columns": MATMUL[2]}, times)
    times, starts = [], []
    for point in product(*RECURRENT):
        pair, start = recurrent(*point)
        times.append(pair)
        starts.append(start)
        print("recurrent", *point, [round(t) for t in pair], round(start), file=sys.stderr)
    out += table("recurrent", {"batch": RECURRENT[0], "hidden": RECURRENT[1]}, times)
    out.insert(-1, f"start = {np.median(starts):.0f}  # nanoseconds more for 8 bit, however few the steps")
    around = "Transpose is the change of layout around an integer Conv, Reorder around a float one"
    out += ["[borders]", f"# nanoseconds per element; {around}"]
    large = [(size, rest) for size, rest in borders if size > 100_000]
    for kind in ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reorder"):
        costs = [rest[kind] / (size / 2 * (2 if kind == "Transpose" else 1)) for size, rest in large if rest.get(kind)]
        out.append(f"{kind} = {np.median(costs) if costs else 0.0:.4f}")
    node, conversion = node_time(), conversion_time()
    out.append(f"node = {node:.0f}  # nanoseconds for one more node, however small its tensor")
    sentence = f"for a conversion and the changes of layout on both sides of it: {conversion / node:.1f} nodes"
    out.append(f"conversion = {conversion:.0f}  # {sentence}")
    out += ["", *row_table(), "", "[elementwise]", ELEMENTWISE_NOTE]
    kinds = ("Add", "Mul", "Concat", "AveragePool", "LeakyRelu", "Sigmoid")
    times_of = {kind: elementwise(kind) for kind in kinds}
    out += [f"{kind} = {pair}" for kind, pair in (times_of | ramps(times_of["Mul"])).items()]
    out.append(f"SiLU = {silu()}")
    out.append(f"MaxPool = {max_pooling()}")
    out += [f"Resize_{mode} = {resizing(mode)}" for mode in ("nearest", "linear")]
    out += ["", "[clamps]", CLAMPS_NOTE, *(f"{kind} = {clamp(kind)}" for kind in ("Relu", "Clip"))]
    target.write_text("\n".join(out) + "\n")


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
            times[row, column] = kernel_times(model.SerializeToString(), {"x": x})[kind]
    step = (times[:, 1] - times[:, 0]) / STEPS
    starts = times[:, 0] - step
    return [float(t) for t in step], float(starts[1] - starts[0])


def matmul(rows: int, inner: int, columns: int) -> list[float]:
    """Give `[float ns, integer ns]` of a MatMul with a constant weight and a float output."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((inner, columns)).astype(np.float32)
    times = []
    for quantized in (False, True):
        if quantized:
            constants = {
                "scale": np.array(0.05, np.float32),
                "zero": np.array(128, np.uint8),
                "w8": np.clip(np.rint(weight / 0.02), -127, 127).astype(np.int8),
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
        feeds = {"x": random.standard_normal((rows, inner)).astype(np.float32)}
        found = kernel_times(model.SerializeToString(), feeds)
        times.append(found["MatMulIntegerToFloat" if quantized else "MatMul"])
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


def row_table(runs: int = 5) -> list[str]:
    """Give what a scale for every row takes besides the product: by element of what is read, made, and in a window."""
    random = np.random.default_rng(1)

    def beside(op_type: str, shape: list[int], weight: tuple[int, ...]) -> float:
        """Time around a product and its conversion to 8 bit; the least of several measurements."""
        feeds, skipped = {"x": random.standard_normal(shape).astype(np.float32)}, ("MatMulInteger", "Transpose")
        model = row_model(op_type, shape, weight, rows=True)
        found = [kernel_times(model, feeds) for _ in range(runs)]
        kept = {kind for kind in found[0] if kind not in skipped and (op_type == "Conv" or kind != "QuantizeLinear")}
        return sum(min(times[kind] for times in found) for kind in kept)

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


def table(name: str, axes: dict[str, object], times: list[list[float]]) -> list[str]:
    """Write one table: its axes, and the times with the last axis running fastest."""
    lines = [f"[{name}]"] + [f"{key} = {list(values)}" for key, values in axes.items()]
    lines += [f"{key} = {[round(pair[i]) for pair in times]}" for i, key in enumerate(("float", "integer"))]
    return [*lines, ""]


if __name__ == "__main__":
    main()
