"""What the tests of the quantized kernels share: one node as a model, run by onnxruntime or by our kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from onnxq.ops.kernels.registry import find_kernel
from onnxq.ops.quantized import host_arithmetic, integer_arithmetic

IR_VERSION = {10: 5, 11: 6, 12: 7, 13: 7, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13}
FED_AS = {np.dtype(t): np.dtype(np.int8) for t in (ml_dtypes.int4, ml_dtypes.int2)}
FED_AS |= {np.dtype(t): np.dtype(np.uint8) for t in (ml_dtypes.uint4, ml_dtypes.uint2)}
FLOAT8 = [
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
]
FED_AS |= dict.fromkeys(FLOAT8, np.dtype(np.float32))


def code(dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """One thread, nothing optimised: the numbers of the kernels themselves."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def node_session(op_type, inputs, output_dtypes, *, version=21, domain="", any_shape=True, **attributes):
    """A session of one node whose inputs have the types and ranks of `inputs` (None: absent).

    onnxruntime's Python cannot take or give types of less than a byte nor float8: those pass through a Cast.
    """
    nodes, values, names = [], [], []
    for number, value in enumerate(inputs):
        name = "" if value is None else f"i{number}"
        names.append(name)
        if value is None:
            continue
        value = np.asarray(value)
        fed = FED_AS.get(value.dtype)
        shape = [None] * value.ndim if any_shape else list(value.shape)
        if fed is None:
            values.append(helper.make_tensor_value_info(name, code(value.dtype), shape))
        else:
            values.append(helper.make_tensor_value_info(f"{name}f", code(fed), shape))
            exact = {"saturate": 0} if value.dtype in FLOAT8 else {}  # or infinity would arrive as the largest value
            nodes.append(helper.make_node("Cast", [f"{name}f"], [name], to=code(value.dtype), **exact))
    outputs = [f"o{number}" for number in range(len(output_dtypes))]
    nodes.append(helper.make_node(op_type, names, outputs, domain=domain, **attributes))
    results = []
    for name, dtype in zip(outputs, output_dtypes, strict=True):
        got = FED_AS.get(np.dtype(dtype))
        if got is None:
            results.append(helper.make_tensor_value_info(name, code(dtype), None))
        else:
            nodes.append(helper.make_node("Cast", [name], [f"{name}c"], to=code(got)))
            results.append(helper.make_tensor_value_info(f"{name}c", code(got), None))
    graph = helper.make_graph(nodes, "node", values, results)
    imports = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return session(helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION[version]))


def feeds_of(inputs):
    feeds = {}
    for number, value in enumerate(inputs):
        if value is not None:
            value = np.asarray(value)
            fed = FED_AS.get(value.dtype)
            feeds[f"i{number}" if fed is None else f"i{number}f"] = value if fed is None else value.astype(fed)
    return feeds


def run_onnxruntime(op_type, inputs, output_dtypes, **settings):
    return node_session(op_type, inputs, output_dtypes, any_shape=False, **settings).run(None, feeds_of(inputs))


def run_kernel(op_type, inputs, *, version=21, domain="", arithmetic=None, **attributes):
    """Run our kernel, with integer products as onnxruntime has them on this processor if nothing else is asked for."""
    kernel = find_kernel(op_type, domain, 1 if domain else version)
    assert kernel is not None, op_type
    with integer_arithmetic(arithmetic or host_arithmetic()):
        result = kernel(*inputs, **attributes)
    return list(result) if isinstance(result, tuple) else [result]


def as_fed(array):
    """Give an array in the type in which it comes out of a session."""
    fed = FED_AS.get(array.dtype)
    return array if fed is None else array.astype(fed)


def run_node(node: onnx.NodeProto, inputs, opset: int):
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    return run_kernel(node.op_type, inputs, version=opset, domain=node.domain, **attributes)


def differing(mine, other) -> int:
    """How many elements differ; NaN equals NaN. Shapes and types must be the same."""
    assert mine.shape == other.shape, (mine.shape, other.shape)
    assert mine.dtype == other.dtype, (mine.dtype, other.dtype)
    if mine.dtype.kind in "iub":
        return int(np.count_nonzero(mine != other))
    a, b = mine.astype(np.float32), other.astype(np.float32)
    return int(np.count_nonzero((a != b) & ~(np.isnan(a) & np.isnan(b))))


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
