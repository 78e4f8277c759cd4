"""What tests of simplifying passes ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from helpers import run

from onnxq.ir import Model, infer_types, parse
from onnxq.ir.consistency import problems
from onnxq.ir.passes import normalise
from onnxq.simplify import Simplified, simplify


def simplified(proto: onnx.ModelProto, *only: str) -> Simplified:
    """Normalise and simplify a model, and find the result sound and finished."""
    model = parse(proto.SerializeToString())
    normalise(model)
    infer_types(model)
    found = simplify(model, only or None)
    assert list(problems(found.model)) == []
    again = simplify(found.model, only or None)
    assert (again.model, again.original, again.notes) == (found.model, None, ())
    if found.original is None:
        assert found.notes == ()
    names = [node.name for node in found.model.graph.walk() if node.name]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(onnx.ModelProto.FromString(found.model.serialize()), full_check=True)
    return found


def written(model: Model) -> list[str]:
    """The nodes of the main graph as text: `y = Add(x, bias)`, constants of one element as numbers."""
    lines = []
    for node in model.graph.nodes:
        inputs = ["" if value is None else _label(value) for value in node.inputs]
        attributes = [f"{name}={value}" for name, value in sorted(node.attributes().items())]
        outputs = ", ".join(value.name for value in node.outputs if value is not None)
        lines.append(f"{outputs} = {node.op_type}({', '.join(inputs + attributes)})")
    return lines


def _label(value) -> str:
    tensor = value.constant
    if tensor is None:
        return value.name
    return str(tensor.numpy().tolist()) if tensor.size <= 4 else f"{value.name}{list(tensor.shape)}"


def assert_same(
    proto: onnx.ModelProto, found: Simplified, feeds: Sequence[Mapping[str, np.ndarray]], rtol: float = 0.0
) -> None:
    """Both models give the same in onnxruntime: relative to the largest element of each output, or to a billionth."""
    data = found.model.serialize()
    for sample in feeds:
        for expected, got in zip(run(proto.SerializeToString(), sample), run(data, sample), strict=True):
            assert expected.shape == got.shape
            assert expected.dtype == got.dtype
            atol = rtol * float(np.abs(expected).max(initial=1e-9))
            np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
