"""Functions spelled out in ONNX's textual syntax, and what is left of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from helpers import every_node, run
from onnx import helper

from onnxq.ir import Model, infer_types, parse
from onnxq.ir.invariants import problems
from onnxq.ir.pass_manager import Outcome
from onnxq.ir.passes import normalise
from onnxq.simplify import simplify

Arrays = Mapping[str, np.ndarray]


def model_of(text: str, weights: Arrays, opset: int) -> Model:
    """A normalised model, its types inferred."""
    ir_version = max(helper.find_min_ir_version_for([helper.make_opsetid("", opset)]), 4)
    proto = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')
    names = {name for node in every_node(proto.graph) for name in node.input}
    for name, array in weights.items():
        if name in names:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    model = parse(proto.SerializeToString())
    normalise(model)
    infer_types(model)
    return model


def simplified(text: str, weights: Arrays, name: str, opset: int = 17) -> Outcome:
    """What one pass makes of a model; it is sound, and nothing is left to do."""
    found = simplify(model_of(text, weights, opset), [name])
    assert list(problems(found.model)) == []
    onnx.checker.check_model(onnx.ModelProto.FromString(found.model.serialize()), full_check=True)
    again = simplify(found.model, [name])
    assert again.notes == ()
    return found


def ops(model: Model) -> list[str]:
    """Operator types in graph order."""
    return [node.op_type for node in model.graph.nodes]


def assert_same(found: Outcome, feeds: Arrays, tolerance: float) -> None:
    """Both models give the same, in onnxruntime: the difference is below `tolerance` of the largest element."""
    assert found.original is not None
    before, after = (run(model.serialize(), feeds) for model in (found.original, found.model))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=0, atol=tolerance * max(float(np.abs(old).max()), 1e-30))
