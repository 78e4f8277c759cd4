"""Last axes that count places: no class is chosen along them."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import build, floats, node

from onnxq.ir import Model, parse
from onnxq.runtime.session import InMemory
from onnxq.verification.class_axes import outputs_of_places
from onnxq.verification.compare import compare


def parsed(*nodes: onnx.NodeProto, **inputs: list[object]) -> Model:
    weights = {
        "k": floats(6, 3, 3, 3),
        "w": floats(8, 5),
        "flat": np.array([0, 6, -1]),
        "tokens": np.array([0, -1, 8]),
        "three": floats(1, 6, 1, seed=2),
    }
    used = {name for one in nodes for name in one.input}
    made = build(list(nodes), inputs, weights={name: array for name, array in weights.items() if name in used})
    return parse(made.SerializeToString())


def found(model: Model) -> set[str]:
    return outputs_of_places(InMemory(model), [value.name for value in model.graph.outputs])


CONV = (node("Conv", "x k", "c"), node("Reshape", "c flat", "r"))


def test_places_of_a_map_are_no_classes() -> None:
    assert found(parsed(*CONV, node("Sigmoid", "r", "y"), x=["n", 3, 10, 10])) == {"y"}
    assert found(parsed(*CONV, node("Mul", "r three", "y"), x=["n", 3, 10, 10])) == {"y"}
    two = (node("Split", "r", "a b", axis=1), node("Concat", "b a", "y", axis=1))
    assert found(parsed(*CONV, *two, x=["n", 3, "h", "w"])) == {"y"}


def test_channels_and_tokens_are() -> None:
    assert found(parsed(*CONV, node("Transpose", "r", "y", perm=[0, 2, 1]), x=["n", 3, 10, 10])) == set()
    assert found(parsed(node("MatMul", "x w", "m"), node("Softmax", "m", "y"), x=["n", "t", 8])) == set()
    turned = (node("MatMul", "x w", "m"), node("Transpose", "m", "y", perm=[0, 2, 1]))
    assert found(parsed(*turned, x=["n", "t", 8])) == {"y"}
    assert found(parsed(node("Relu", "x", "y"), x=["n", 4, 8])) == set()


def test_such_an_output_has_no_agreement() -> None:
    weights = {"k": floats(6, 3, 3, 3), "flat": np.array([0, 6, -1])}
    model = build([*CONV, node("Relu", "r", "y")], {"x": ["n", 3, 10, 10]}, weights=weights).SerializeToString()
    samples = [{"x": floats(1, 3, 10, 10, seed=seed)} for seed in range(3)]
    (output,) = compare(model, model, samples, latency=False).outputs
    assert (output.equal, output.agreement) == (True, None)
