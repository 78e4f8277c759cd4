"""Calls of model-local functions are replaced by what the functions do.

Tests: `tests/ir/test_fold.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.inliner

from onnxq.errors import ModelError, OnnxqError
from onnxq.ir.graph import STANDARD_DOMAINS
from onnxq.ir.invariants import plain_reason
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.proto_fields import walk
from onnxq.ir.schemas import same_meaning
from onnxq.ir.tensor import Tensor


def _align(function: onnx.FunctionProto, opset: int) -> None:
    """Let a function import the operator set of the model where its operators do the same in both: less to convert."""
    for imported in function.opset_import:
        if imported.domain in STANDARD_DOMAINS and all(
            same_meaning(node.op_type, imported.version, opset)
            for node in walk(function.node)
            if node.domain in STANDARD_DOMAINS
        ):
            imported.version = opset


def _refuse_recursion(name: str, functions: Iterable[onnx.FunctionProto]) -> None:
    """Raise a ModelError for a function that calls itself, directly or through others."""
    called = {
        (function.domain, function.name): {(node.domain, node.op_type) for node in walk(function.node)}
        for function in functions
    }
    try:
        TopologicalSorter(called).prepare()
    except CycleError as error:
        domain, function = error.args[1][0]
        raise ModelError(
            f"{name}: its function {function} of domain {domain} calls itself, which ONNX does not allow",
            "Export the model again.",
        ) from error


@register_pass(order=10, note="inlined {} model-local function{s}")
def inline_functions(model: Model) -> int:
    """Inline every function, nested ones too, and give how many there were.

    Raises:
        ModelError: A function cannot be inlined.

    """
    if not model.has_functions:
        return 0
    weights: list[Tensor] = []
    try:
        proto = onnx.ModelProto.FromString(model.skeleton(weights))
        count = len(proto.functions)
        _refuse_recursion(model.name, proto.functions)
        opset = model.opset
        for function in proto.functions:
            _align(function, opset)
        if any(o.domain in STANDARD_DOMAINS and o.version != opset for f in proto.functions for o in f.opset_import):
            proto = onnx.shape_inference.infer_shapes(proto)  # converting a function takes the types of its inputs
        inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
        model.read_skeleton(inlined.SerializeToString(deterministic=True), weights)
    except OnnxqError:
        raise
    except Exception as error:  # the binding raises bare RuntimeError and ValueError subclasses alike
        raise ModelError(
            f"{model.name}: its model-local functions cannot be inlined: {plain_reason(error)}",
            "Inline them with the exporter.",
        ) from error
    return count
