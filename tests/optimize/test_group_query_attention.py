"""Causal attention as one operator: what is recognised, what stays, and that values are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, applied, build, count_ops, floats, node, run, typed
from onnx import TensorProto

from onnxq import evaluate
from onnxq.optimize.attention.group_query_attention import group_query
from onnxq.optimize.attention.sizes import NotKnown, Sizes, sized_values
from onnxq.optimize.optimize import optimize_for_target

HEADS, KV_HEADS, SIZE = 4, 2, 16
WIDTH, KV_WIDTH = HEADS * SIZE, KV_HEADS * SIZE
NUMBERS = {
    "zero": np.array(0), "one": np.array(1), "ones": np.array([1]), "zeros": np.array([0]), "twos": np.array([2]),
    "half": np.array([SIZE // 2]), "end": np.array([1 << 62]), "last": np.array([-1]), "column": np.array([-1, 1]),
    "split": np.array([0, 0, -1, SIZE]), "joined": np.array([0, 0, WIDTH]), "pair": np.array([0, 1]),
    "repeat": np.array([1, 1, HEADS // KV_HEADS, 1, 1]), "together": np.array([0, HEADS, -1, SIZE]),
}  # fmt: skip
LOW = np.float32(-np.inf)


def rotated(name: str, halves: str = "one two") -> list[onnx.NodeProto]:
    """Rotate halves of heads as PyTorch's `rotate_half` does."""
    one, two = ("zeros half", "half end") if halves == "one two" else ("half end", "zeros half")
    return [
        node("Slice", f"{name}h {one} last ones", f"{name}1"),
        node("Slice", f"{name}h {two} last ones", f"{name}2"),
        node("Neg", f"{name}2", f"{name}n"),
        node("Concat", f"{name}n {name}1", f"{name}t", axis=-1),
        node("Mul", f"{name}h cos", f"{name}c"),
        node("Mul", f"{name}t sin", f"{name}s"),
        node("Add", f"{name}c {name}s", f"{name}r"),
    ]


def tables(*, apart: bool = False) -> list[onnx.NodeProto]:
    return [
        node("Shape", "q", "length", start=1, end=2),
        node("Squeeze", "length", "many"),
        node("Range", "zero many one", "places"),
        node("Cast", "places", "floating", to=TensorProto.FLOAT),
        node("Reshape", "floating column", "rows"),
        node("Mul", "rows rates", "angles" if apart else "halves"),
        *([] if apart else [node("Concat", "halves halves", "angles", axis=-1)]),
        node("Cos", "angles", "cos"),
        node("Sin", "angles", "sin"),
    ]


def mask(further: int = 0, *, upper: int = 0) -> list[onnx.NodeProto]:
    """Let a token see itself and all before it, but for those more than `further` before it if that is not 0."""
    nodes = [node("Unsqueeze", "places ones", "down"), node("Unsqueeze", "places zeros", "across")]
    nodes.append(node("Greater" if upper else "LessOrEqual", "across down", "seen0"))
    if further:
        nodes += [node("Sub", "down across", "behind"), node("Less", "behind window", "near")]
        nodes.append(node("And", "seen0 near", "seen"))
    return [*nodes, node("Where", "seen none low" if further else "seen0 none low", "mask")]


def attention(rope: bool = True, behind: str = "") -> list[onnx.NodeProto]:
    """Attention of heads that share keys and values, its logits scaled and masked."""
    nodes = []
    for name in "qkv":
        nodes += [
            node("Reshape", f"{name} split", f"{name}4"),
            node("Transpose", f"{name}4", f"{name}h", perm=[0, 2, 1, 3]),
        ]
    nodes += [*rotated("q"), *rotated("k")] if rope else []
    q, k = ("qr", "kr") if rope else ("qh", "kh")
    for name, wide in ((k, "kw"), ("vh", "vw")):
        nodes += [
            node("Unsqueeze", f"{name} twos", f"{wide}5"),
            node("Expand", f"{wide}5 repeat", f"{wide}e"),
            node("Reshape", f"{wide}e together", wide),
        ]
    return [
        *nodes,
        node("Transpose", "kw", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", f"{q} turned", "raw"),
        node("Mul", "raw scale", "scaled"),
        *([node(behind, "scaled", "bent")] if behind else []),
        node("Add", f"{'bent' if behind else 'scaled'} mask", "logits"),
        node("Softmax", "logits", "weights", axis=-1),
        node("MatMul", "weights vw", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "result"),
        node("Sigmoid", "result", "y"),
    ]


def model(
    nodes: list[onnx.NodeProto],
    outputs: tuple[str, ...] = ("y",),
    length: int | str = "length",
    **weights: np.ndarray,
) -> onnx.ModelProto:
    inputs = {"q": ["batch", length, WIDTH], "k": ["batch", length, KV_WIDTH], "v": ["batch", length, KV_WIDTH]}
    rates = (1e4 ** -(np.arange(SIZE // 2) / (SIZE // 2))).astype(np.float32)
    numbers = {"rates": rates, "scale": np.float32(0.3), "none": np.float32(0), "low": LOW, **NUMBERS, **weights}
    read = {name for step in nodes for name in step.input}
    return build(nodes, inputs, outputs, {name: np.asarray(a) for name, a in numbers.items() if name in read})


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    widths = {"q": WIDTH, "k": KV_WIDTH, "v": KV_WIDTH}
    return {name: floats(batch, length, width, seed=ord(name), scale=2) for name, width in widths.items()}


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("length", ["length", 24])
def test_it_is_one_operator_of_the_same_values(rope: bool, length: int | str) -> None:
    proto = model([*tables(), *mask(), *attention(rope)], length=length)
    made = typed(proto)
    assert applied(group_query, made) == 1
    after = onnx.ModelProto.FromString(made.serialize())
    counts = count_ops(after)
    assert counts["GroupQueryAttention"] == 1
    assert {"Softmax", "MatMul", "Where", "Neg"}.isdisjoint(counts)
    assert "n_result" in [step.name for step in after.graph.node]
    for batch, many in ((1, 24), (3, 24)) if length == 24 else ((1, 1), (2, 5), (1, 70)):
        given = feeds(batch, many)
        expected = run(proto.SerializeToString(), given, NONE)[0]
        for level in (NONE, ALL):
            np.testing.assert_allclose(run(after.SerializeToString(), given, level)[0], expected, atol=3e-6)
        np.testing.assert_allclose(evaluate(after, given)["y"], expected, atol=3e-6)


def test_queries_keys_and_values_of_one_product_stay_together() -> None:
    width = HEADS * SIZE
    nodes = [
        node("Reshape", "x split5", "x5"),
        node("Transpose", "x5", "xt", perm=[2, 0, 3, 1, 4]),
        node("Split", "xt", "q1 k1 v1", axis=0),
        *(node("Squeeze", f"{name}1 zeros", f"{name}h") for name in "qkv"),
        node("Transpose", "kh", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "qh kt", "raw"),
        node("Div", "raw root", "scaled"),
        node("Where", "seen scaled low", "logits"),
        node("Softmax", "logits", "weights", axis=-1),
        node("MatMul", "weights vh", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "y"),
    ]
    weights = {
        "split5": np.array([0, 20, 3, HEADS, SIZE]), "zeros": np.array([0]), "joined": np.array([0, 20, width]),
        "root": np.float32(4), "seen": np.tri(20, dtype=bool)[None, None], "low": np.float32(-1e9),
    }  # fmt: skip
    proto = build(nodes, {"x": ["batch", 20, 3 * width]}, ("y",), weights)
    made = typed(proto)
    assert applied(group_query, made) == 1
    x = floats(2, 20, 3 * width)
    expected = run(proto.SerializeToString(), {"x": x}, NONE)[0]
    np.testing.assert_allclose(run(made.serialize(), {"x": x})[0], expected, atol=3e-6)


@pytest.mark.parametrize(
    "proto",
    [
        model([*tables(), *mask(upper=1), *attention()]),  # what follows is seen
        model([*tables(), *mask(7), *attention()], window=np.array(7)),
        model([*tables(), *mask(100), *attention()], window=np.array(100)),  # beyond the usual sizes
        model([*tables(), *mask(5000), *attention()], window=np.array(5000)),  # beyond what can be tried
        model([*tables(), *mask(), *attention(behind="Tanh")]),  # softcap
        model([*tables(), *mask(), *attention()], ("y", "weights")),
        model([*tables(), *mask(), *attention(), node("Sigmoid", "turned", "also")], ("y", "also")),
        model([*tables(apart=True), *mask(), *attention()], rates=floats(SIZE)),  # no rotation: angles of pairs differ
        model([*tables(), *mask(), *attention()], scale=floats(HEADS, 1, 1)),
    ],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert applied(group_query, typed(proto)) == 0


def test_it_is_for_runtimes_that_have_the_operator() -> None:
    proto = model([*tables(), *mask(), *attention()])
    for target, count in (("cpu", 0), ("qnn", 1), ("openvino", 1)):
        kinds = [step.op_type for step in optimize_for_target(typed(proto), target).graph.nodes]
        assert kinds.count("Softmax") == count


def test_sizes_are_computed_and_others_named() -> None:
    made = typed(model([*tables(), *mask(), *attention()]))
    sized = sized_values(made.graph)
    values = made.graph.values
    assert values["cos"] in sized
    assert values["raw"] not in sized
    sizes = Sizes({"batch": 1, "length": 3}, made.opset)
    np.testing.assert_array_equal(sizes.of(values["mask"]) == 0, np.tri(3, dtype=bool))
    with pytest.raises(NotKnown, match="the shape of 'q' is not known"):
        Sizes({"batch": 1}, made.opset).shape(values["q"])
    with pytest.raises(NotKnown, match="is not known"):
        sizes.of(values["raw"])
