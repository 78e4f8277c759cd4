"""Measure what stands around and between convolutions and products: for `measure_target.py`, whose tables it fills."""

from __future__ import annotations

import numpy as np
import onnx
from kernel_turns import Measuring, least_times, turns
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import Model, infer_types, parse
from onnxq.optimize.optimize import optimize_for_target

RUNS = 40
BESIDE = ("Conv", "Linear", "Reorder")  # of operators between Convs: conversions, and what Convs take themselves
SHAPE = (1, 64, 40, 40)  # a map that stays in the cache of a core, as most of a network do
POOLED = {"kernel_shape": [2, 2], "strides": [2, 2]}
CLAMPED = ((32, 128, 1, 28, 1), (128, 32, 1, 28, 1), (64, 64, 3, 56, 64), (16, 64, 3, 28, 1))


def weight_codes(weight: np.ndarray, bits: int = 8) -> np.ndarray:
    """Return int8 codes of a weight of standard normal numbers."""
    top = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(weight * top / 2.5), -top, top)
    return codes.astype(np.int8)


def conv_model(
    channels: int,
    filters: int,
    kernel: int,
    side: int,
    group: int,
    *,
    quantized: bool,
    bits: int = 8,
) -> bytes:
    """A Conv, in float or with Q/DQ pairs around it."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((filters, channels // group, kernel, kernel)).astype(np.float32)
    bias = np.zeros(filters, np.float32)
    one, zero = np.float32(0.05), np.uint8(128)
    constants = {"scale": np.array(one), "zero": np.array(zero)}
    attributes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": group}
    if quantized:
        scales = np.full(filters, 0.02, np.float32)
        constants |= {
            "w8": weight_codes(weight, bits),
            "ws": scales,
            "wz": np.zeros(filters, np.int8),
            "b32": bias.astype(np.int32),
            "bs": scales * one,
        }
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w8", "ws", "wz"], ["w"], axis=0),
            helper.make_node("DequantizeLinear", ["b32", "bs"], ["b"], axis=0),
            helper.make_node("Conv", ["xd", "w", "b"], ["c"], **attributes),
            helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["cq"]),
            helper.make_node("DequantizeLinear", ["cq", "scale", "zero"], ["y"]),
        ]
    else:
        constants |= {"w": weight, "b": bias}
        nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)]
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, filters, side, side])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def node_time(length: int = 400) -> float:
    """Give the time of one more node on a tiny tensor in nanoseconds, without the profiler, which costs more itself."""
    return chain_time([[("Softsign", [], {})]] * length) / length


def conversion_time(length: int = 100) -> float:
    """Give the same for a conversion and a change of layout on each side of it: to codes, back to floats, in turn."""
    there, back = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
    into = [("Transpose", [], there), ("QuantizeLinear", ["scale", "zero"], {}), ("Transpose", [], back)]
    out = [("Transpose", [], there), ("DequantizeLinear", ["scale", "zero"], {}), ("Transpose", [], back)]
    return chain_time([into, out] * length) / (2 * length)


def chain_time(steps: list[list[tuple[str, list[str], dict[str, object]]]]) -> float:
    """Give the least time of a chain of operators on 32 numbers as it stands, not optimised, in nanoseconds."""
    flat = [operator for step in steps for operator in step]
    constants = {"scale": np.float32(0.05), "zero": np.uint8(128)}
    nodes = [
        helper.make_node(kind, [f"v{i}", *reads], [f"v{i + 1}"], **attributes)
        for i, (kind, reads, attributes) in enumerate(flat)
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1, 8, 2, 2])],
        [helper.make_tensor_value_info(f"v{len(flat)}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(constants[name], name) for name in sorted({name for _, c, _ in flat for name in c})],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Measuring.engine.run_time(model.SerializeToString(), {"v0": np.ones((1, 8, 2, 2), np.float32)}, RUNS)


def elementwise(kind: str) -> list[float]:
    """Give the cost of an operator without weights per element, in float and between Q/DQ pairs."""
    shape, two = list(SHAPE), kind in ("Add", "Mul", "Concat")
    attributes = {"Concat": {"axis": 1}, "AveragePool": POOLED}
    constants = {"scale": np.array(0.05, np.float32), "zero": np.array(128, np.uint8)}
    inputs = ["x", "z"] if two else ["x"]
    costs = []
    for quantized in (False, True):
        nodes = []
        for name in inputs if quantized else ():
            nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", "scale", "zero"], [f"{name}d"]))
        reads = [f"{name}d" for name in inputs] if quantized else inputs
        nodes.append(helper.make_node(kind, reads, ["r" if quantized else "y"], **attributes.get(kind, {})))
        if quantized:
            nodes.append(helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["rq"]))
            nodes.append(helper.make_node("DequantizeLinear", ["rq", "scale", "zero"], ["y"]))
        graph = helper.make_graph(
            nodes,
            kind,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in constants.items()] if quantized else [],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        feeds = {name: np.random.default_rng(2).standard_normal(shape).astype(np.float32) for name in inputs}
        times = least_times(model.SerializeToString(), feeds)
        compute = [time for op, time in times.items() if op not in ("QuantizeLinear", "DequantizeLinear", "Transpose")]
        costs.append(round(float(sum(compute) / np.prod(shape)), 4))
    return costs


def max_pooling() -> list[float]:
    """Give the cost of a MaxPool behind a Conv per element; only of codes that a Conv has made it is fast."""
    node = helper.make_node("MaxPool", ["before"], ["y"], **POOLED)
    return [round(time / (64 * 56**2), 4) for time in behind_conv(node)]


def resizing(factor: int) -> list[float]:
    """Give the cost of a Resize between Convs per element that it gives, as onnxq writes it.

    In 8 bit with the changes of layout around it, which the Convs alone do not need.
    """
    node = helper.make_node(
        "Resize",
        ["before", "", "factors"],
        ["y"],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    feeds, made = (
        {"x": np.random.default_rng(1).standard_normal((1, 64, 56, 56)).astype(np.float32)},
        64 * (56 * factor) ** 2,
    )
    last = (
        {"v": np.ones((8, 64, 1, 1), np.float32)},
        {"v": np.ones((8, 64, 1, 1), np.int8), "v_scale": np.float32(0.02)},
    )
    costs = []
    for quantized in (False, True):
        first = conv_model(64, 64, 1, 56, 1, quantized=quantized)
        resized = followed(first, node, quantized=quantized, factors=np.array([1, 1, factor, factor], np.float32))
        models = [_read_by_conv(model, last[quantized], quantized=quantized) for model in (first, resized)]
        if quantized:
            models = [
                bytes(optimize_for_target(_typed(model), Measuring.engine.target).serialize()) for model in models
            ]
        without, behind = (
            sum(time for kind, time in found.items() if not any(n in kind for n in BESIDE))
            for found in turns(models, feeds)
        )
        costs.append(round((behind - without) / made, 4))
    return costs


def _read_by_conv(model: bytes, constants: dict[str, np.ndarray], *, quantized: bool) -> bytes:
    """Let a Conv of few filters read what a model gives."""
    proto = onnx.load_from_string(model)
    proto.graph.node[-1].output[0] = "last"
    if quantized:
        proto.graph.node.append(helper.make_node("DequantizeLinear", ["v", "v_scale"], ["w_last"]))
    proto.graph.node.append(
        helper.make_node("Conv", ["last", "w_last" if quantized else "v"], ["r" if quantized else "y"])
    )
    if quantized:
        proto.graph.node.append(helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["rq"]))
        proto.graph.node.append(helper.make_node("DequantizeLinear", ["rq", "scale", "zero"], ["y"]))
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return bytes(proto.SerializeToString())


def _typed(model: bytes) -> Model:
    parsed = parse(model)
    infer_types(parsed)
    return parsed


def followed(model: bytes, node: onnx.NodeProto, *, quantized: bool, **constants: np.ndarray) -> bytes:
    """Let a node read `before`, which the Conv of a model then gives, and give `y`, between Q/DQ pairs if need be."""
    proto = onnx.load_from_string(model)
    proto.graph.node[-1].output[0] = "before"
    proto.graph.node.append(node)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    if quantized:
        proto.graph.node[-1].output[0] = "made"
        proto.graph.node.append(helper.make_node("QuantizeLinear", ["made", "scale", "zero"], ["codes"]))
        proto.graph.node.append(helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    return bytes(proto.SerializeToString())


def behind_conv(node: onnx.NodeProto) -> list[float]:
    """Give the time of a node that reads what a Conv of 64 channels makes, in float and between Q/DQ pairs."""
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 64, 56, 56)).astype(np.float32)}
    models = [
        followed(conv_model(64, 64, 1, 56, 1, quantized=quantized), node, quantized=quantized)
        for quantized in (False, True)
    ]
    return [sum(time for kind, time in found.items() if node.op_type in kind) for found in turns(models, feeds)]


def float_times() -> dict[str, float]:
    """Give the time of operators that compute in float per element: of the output, or that a ReduceMean reads."""
    shape = [1, 128, 768]
    constants = {"other": np.full(shape, 1.5, np.float32), "scale": np.ones(768, np.float32)}
    constants |= {"zeros": np.zeros(768, np.float32), "axis": np.array([-1], np.int64), "two": np.float32(2)}
    constants |= {"rows": np.arange(128)[None], "table": np.ones((4096, 768), np.float32)}
    constants |= {"yes": np.ones(shape, np.bool_)}
    second: dict[str, tuple[list[str], dict[str, object]]] = {
        **dict.fromkeys(("Softmax", "Erf", "Gelu", "Tanh", "Exp", "Sqrt", "Relu", "Neg", "Reciprocal"), ([], {})),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max"), (["other"], {})),
        "Pow": (["two"], {}),
        "LayerNormalization": (["scale", "zeros"], {}),
        "ReduceMean": ([], {"axes": [-1]}),
        "Transpose": ([], {"perm": [0, 2, 1]}),
    }
    times = {}
    for kind, (reads, attributes) in second.items():
        times[kind] = _float_time(helper.make_node(kind, ["x", *reads], ["y"], **attributes), shape, constants)
    times["Gather"] = _float_time(helper.make_node("Gather", ["table", "rows"], ["y"]), shape, constants)
    times["Where"] = _float_time(helper.make_node("Where", ["yes", "x", "other"], ["y"]), shape, constants)
    return times


def _float_time(node: onnx.NodeProto, shape: list[int], constants: dict[str, np.ndarray]) -> float:
    used = {name: array for name, array in constants.items() if name in node.input}
    data = {name: used.pop(name) for name in ("rows", "yes") if name in used}  # else onnxruntime computes it at load
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)] if "x" in node.input else []
    inputs += [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in data.items()
    ]
    graph = helper.make_graph(
        [node],
        "one",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in used.items()],
    )
    opset = 17 if node.op_type == "ReduceMean" else 20
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = data | ({"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)} if inputs else {})
    feeds = {name: array for name, array in feeds.items() if name in node.input}
    found = least_times(bytes(model.SerializeToString()), feeds)
    return round(sum(found.values()) / float(np.prod(shape)), 4)


def clamp(kind: str) -> float:
    """Give what a Relu, Clip or HardSwish adds to a float Conv per element, another one behind; median of shapes."""
    added = []
    for channels, filters, kernel, side, group in CLAMPED:
        times = []
        for reads in ("before", "clamped"):
            proto = onnx.load_from_string(conv_model(channels, filters, kernel, side, group, quantized=False))
            next(node for node in proto.graph.node if node.op_type == "Conv").output[0] = "before"
            constants = {"v": np.ones((8, filters, 1, 1), np.float32)}
            if reads == "clamped":
                bounds = {"low": np.float32(0), "high": np.float32(6)} if kind == "Clip" else {}
                constants |= bounds
                proto.graph.node.append(helper.make_node(kind, ["before", *bounds], [reads]))
            proto.graph.node.append(helper.make_node("Conv", [reads, "v"], ["y"]))
            proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
            proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
            feeds = {"x": np.random.default_rng(1).standard_normal((1, channels, side, side)).astype(np.float32)}
            times.append(least_times(proto.SerializeToString(), feeds)["Conv"])
        added.append((times[1] - times[0]) / (filters * side**2))
    return round(max(float(np.median(added)), 0.0), 4)


def ramps(product: list[float]) -> dict[str, list[float]]:
    """Give the costs of HardSigmoid and HardSwish per element, in float behind a Conv, in 8 bit as they are written.

    Args:
        product: Of a Mul, which is one of the two operators that a HardSwish is.

    """
    shape = list(SHAPE)
    constants = {"s": np.float32(0.05), "z": np.uint8(128), "t": np.float32(0.05 / 6), "code": np.uint8(255)}
    constants |= {"half": np.float32(0.5 / 255), "o": np.uint8(0), "one": np.float32(1 / 255)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["code", "half", "o"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "one", "o"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "one", "o"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "ramp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    total = least_times(model.SerializeToString(), feeds)["QLinearAdd"] / float(np.prod(shape))
    behind = clamp("HardSwish")
    return {
        "HardSigmoid": [round(max(behind - product[0], 0.0), 4), round(total, 4)],
        "HardSwish": [behind, round(total + product[1], 4)],
    }


def silu() -> list[float]:
    """Give the cost of `x Sigmoid(x)` per element: one operator in float, and a conversion on either side besides."""
    shape = list(SHAPE)
    constants = {"s": np.float32(0.05), "z": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("QuickGelu", ["a"], ["m"], domain="com.microsoft", alpha=1.0),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "silu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    times = least_times(model.SerializeToString(), feeds)
    conversions = (times["QuantizeLinear"] + times["DequantizeLinear"]) / 2  # there are two of each
    elements = float(np.prod(shape))
    return [round(times["QuickGelu"] / elements, 4), round((times["QuickGelu"] + conversions) / elements, 4)]
