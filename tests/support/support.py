"""What tests of simplifying passes ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from helpers import build, floats, node, run
from hypothesis import strategies as st

from onnxq.ir import Model, infer_types, parse
from onnxq.ir.invariants import problems
from onnxq.ir.pass_manager import Outcome
from onnxq.ir.passes import normalise
from onnxq.simplify import simplify

PICTURES = [{"x": floats(2, 3, 5, 5, seed=3)}]  # what `conv_with` takes


def simplified(proto: onnx.ModelProto, *only: str) -> Outcome:
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
    for each in model.graph.nodes:
        inputs = ["" if value is None else _label(value) for value in each.inputs]
        attributes = [f"{name}={value}" for name, value in sorted(each.attributes().items())]
        outputs = ", ".join(value.name for value in each.outputs if value is not None)
        lines.append(f"{outputs} = {each.op_type}({', '.join(inputs + attributes)})")
    return lines


def _label(value) -> str:
    tensor = value.constant
    if tensor is None:
        return value.name
    return str(tensor.numpy().tolist()) if tensor.size <= 4 else f"{value.name}{list(tensor.shape)}"


def assert_same(
    proto: onnx.ModelProto, found: Outcome, feeds: Sequence[Mapping[str, np.ndarray]], rtol: float = 0.0
) -> None:
    """Both models give the same in onnxruntime: relative to the largest element of each output, or to a billionth."""
    data = found.model.serialize()
    for sample in feeds:
        for expected, got in zip(run(proto.SerializeToString(), sample), run(data, sample), strict=True):
            assert expected.shape == got.shape
            assert expected.dtype == got.dtype
            atol = rtol * float(np.abs(expected).max(initial=1e-9))
            np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def conv_with(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    outputs: Sequence[str] = ("y",),
    conv: str = "x w",
) -> onnx.ModelProto:
    """A Conv of four channels, `c`, with the bias `b` if `conv` names it, and what stands behind it."""
    own = {"w": floats(4, 3, 5, 1), "b": floats(4, seed=5)}
    read = {name: own[name] for name in own if name in conv.split()}
    return build([node("Conv", conv, "c"), *nodes], {"x": ["n", 3, 5, 5]}, outputs, {**read, **weights})


@st.composite
def convolutions_with_a_constant(draw: st.DrawFn, *operators: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution or a transposed one, in groups or not, one of these operators behind it; and a sample."""
    group, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    transposed, scalar = draw(st.booleans()), draw(st.booleans())
    shape = (2 * group, channels, 3) if transposed else (channels * group, 2, 3)
    nodes = [
        node("ConvTranspose" if transposed else "Conv", "x w b", "c", group=group),
        node(draw(st.sampled_from(operators)), "c k", "y"),
    ]
    constant = floats(1, 1, seed=9) if scalar else floats(channels * group, 1, seed=9)
    weights = {"w": floats(*shape), "b": floats(channels * group, seed=2), "k": constant}
    proto = build(nodes, {"x": ["n", 2 * group, 7]}, weights=weights)
    return proto, {"x": floats(2, 2 * group, 7, seed=4)}
