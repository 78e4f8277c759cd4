"""Batch and sequence swapped so that attention reads heads where they are: the same numbers, and fewer Transposes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from helpers import ALL, NONE, build, changed_alike, floats, graph, node, run, session
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from onnxq.optimize.sequence_first import put_sequence_first

F = TensorProto.FLOAT
BATCH, PLACES, HEADS, SIZE = 2, 5, 4, 8
WIDTH = HEADS * SIZE
NUMBERS = {
    "heads": np.array([0, -1, HEADS, SIZE], np.int64),
    "joined": np.array([0, -1, WIDTH], np.int64),
    "third": np.float32(0.3),
}


def attention(name: str, source: str, result: str, *, turned: bool = True) -> tuple[list[onnx.NodeProto], dict]:
    """Attention over `source` and what is added back to it; keys turned in one Transpose or in two."""
    nodes, weights = [], {}
    for index, part in enumerate("qkv"):
        weights[f"{name}_w{part}"] = floats(WIDTH, WIDTH, seed=index, scale=0.2)
        nodes += [
            node("MatMul", f"{source} {name}_w{part}", f"{name}_{part}"),
            node("Reshape", f"{name}_{part} heads", f"{name}_{part}h"),
        ]
    nodes += [node("Transpose", f"{name}_{part}h", f"{name}_{part}t", perm=[0, 2, 1, 3]) for part in "qv"]
    if turned:
        nodes.append(node("Transpose", f"{name}_kh", f"{name}_kt", perm=[0, 2, 3, 1]))
    else:
        nodes.append(node("Transpose", f"{name}_kh", f"{name}_k0", perm=[0, 2, 1, 3]))
        nodes.append(node("Transpose", f"{name}_k0", f"{name}_kt", perm=[0, 1, 3, 2]))
    nodes += [
        node("Mul", f"{name}_qt third", f"{name}_qs"),
        node("MatMul", f"{name}_qs {name}_kt", f"{name}_s"),
        node("Softmax", f"{name}_s", f"{name}_p", axis=-1),
        node("MatMul", f"{name}_p {name}_vt", f"{name}_o"),
        node("Transpose", f"{name}_o", f"{name}_ot", perm=[0, 2, 1, 3]),
        node("Reshape", f"{name}_ot joined", f"{name}_c"),
        node("Add", f"{name}_c {source}", result),
    ]
    return nodes, weights


def normalised(source: str, result: str) -> onnx.NodeProto:
    return node("LayerNormalization", f"{source} gamma", result, axis=-1)


def model(
    nodes: list[onnx.NodeProto], weights: dict, outputs: list[str], *, opset: int = 17, **inputs
) -> onnx.ModelProto:
    known = {"x": (TensorProto.FLOAT, ["b", "t", WIDTH]), **inputs}
    read = {name for each in nodes for name in each.input}
    constants = {name: array for name, array in (NUMBERS | weights).items() if name in read}
    return build(nodes, known, outputs, constants)


def encoder(layers: int = 3, **settings) -> onnx.ModelProto:
    nodes, weights = [normalised("x", "h0")], {"gamma": floats(WIDTH, seed=9)}
    for layer in range(layers):
        made, stored = attention(f"a{layer}", f"h{layer}", f"r{layer}", **settings)
        nodes, weights = [*nodes, *made, normalised(f"r{layer}", f"h{layer + 1}")], weights | stored
    nodes += [node("ReduceMean", f"h{layers}", "y", axes=[1], keepdims=0)]
    return model(nodes, weights, ["y"])


def changed(proto: onnx.ModelProto, **feeds: np.ndarray) -> tuple[onnx.ModelProto, int]:
    """Swap, and compare: to the bit as it stands, and up to rounding where onnxruntime's kernels are others."""
    feeds = {"x": floats(BATCH, PLACES, WIDTH, seed=5), **feeds}
    made, count = changed_alike(proto, put_sequence_first, feeds, levels=())
    for level, tolerance in ((NONE, 0.0), (ALL, 2e-6)):
        expected, got = (run(each.SerializeToString(), feeds, level) for each in (proto, made))
        for before, after in zip(expected, got, strict=True):
            assert before.shape == after.shape
            np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * float(np.abs(before).max(initial=0)))
    return made, count


def borders(proto: onnx.ModelProto) -> int:
    """How many Transposes change between the layouts."""
    orders = [list(each.attribute[0].ints) for each in proto.graph.node if each.op_type == "Transpose"]
    return orders.count([1, 0, 2])


def kernels(proto: onnx.ModelProto, tmp_path) -> Counter[str]:
    """What onnxruntime makes of a model, products that read heads where they are counted as such."""
    path = tmp_path / "optimized.onnx"
    session(proto.SerializeToString(), ALL, str(path))
    found: Counter[str] = Counter()
    for each in onnx.load(path).graph.node:
        settings = {attribute.name: attribute.i for attribute in each.attribute}
        found[each.op_type] += 1
        found["turned"] += settings.get("transBatchA", 0) + settings.get("transBatchB", 0)
    return found


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("places", [1, 7])
def test_products_read_heads_where_they_are(turned, places, tmp_path) -> None:
    proto = encoder(turned=turned)
    made, count = changed(proto, x=floats(3, places, WIDTH, seed=places))
    assert count == 9
    before, after = kernels(proto, tmp_path), kernels(made, tmp_path)
    assert before["Transpose"] == 12
    assert before["turned"] == 0
    assert after["turned"] == 9
    assert after["Transpose"] == 3 + 2  # behind each attention, and at both ends


def test_a_swapped_value_has_a_name_of_its_own() -> None:
    proto = encoder()
    made, _ = changed(proto)
    names = {name for each in made.graph.node for name in each.output}
    assert "r0" not in names
    assert "r0_sequence_first" in names
    assert {"h0", "y"} <= names  # what is not swapped keeps its own


def test_without_heads_nothing_changes() -> None:
    proto = model([normalised("x", "h"), node("Relu", "h", "y")], {"gamma": floats(WIDTH)}, ["y"])
    made, count = changed(proto)
    assert count == 0
    assert made.SerializeToString() == proto.SerializeToString()


def test_heads_that_others_read_as_well_stay_in_front() -> None:
    """As with a cache of keys and values, which are outputs."""
    nodes, weights = attention("a", "x", "r")
    proto = model(nodes, weights, ["r", "a_kt", "a_vt"])
    _, count = changed(proto)
    assert count == 0


def test_one_attention_pays_for_the_border_in_front() -> None:
    nodes, weights = attention("a", "h", "r")
    proto = model([node("Softmax", "x", "h", axis=1), *nodes, node("Softmax", "r", "y", axis=1)], weights, ["y"])
    made, count = changed(proto)
    assert count == 3
    assert borders(made) == 1  # heads come out of it in either layout


def test_outputs_keep_their_layout() -> None:
    nodes, weights = attention("a", "h", "r")
    proto = model(
        [normalised("x", "h"), *nodes, node("Relu", "r", "y")], weights | {"gamma": floats(WIDTH)}, ["y", "h", "r"]
    )
    assert changed(proto)[1] == 3


def test_bodies_read_what_they_did() -> None:
    nodes, weights = attention("a", "h", "r")
    body = graph([node("Add", "r h", "inside")], {}, ["inside"], {})
    nodes = [normalised("x", "h"), *nodes, node("If", "flag", "y", then_branch=body, else_branch=body)]
    proto = model(nodes, weights | {"gamma": floats(WIDTH)}, ["y"], flag=(TensorProto.BOOL, []))
    assert changed(proto, flag=np.array(True))[1] == 3


def test_sizes_are_told_as_they_were() -> None:
    """In the midst of what is swapped, for others that read them."""
    proto = encoder()
    more = [
        node("Shape", "r1", "sizes"),
        node("ConstantOfShape", "sizes", "zeros"),
        node("Cast", "sizes", "y2", to=TensorProto.INT32),
        node("Relu", "zeros", "y3"),
    ]
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    proto = model([*proto.graph.node, *more], constants, {"y": F, "y2": TensorProto.INT32, "y3": F})
    made, count = changed(proto)
    assert count == 9
    assert any(each.op_type == "Shape" and each.input[0] == "r1_sequence_first" for each in made.graph.node)


# What may stand between two attentions: nodes from `a` to `b`, and constants
BETWEEN: dict[str, tuple[list[onnx.NodeProto], dict]] = {
    "relu": ([node("Relu", "a", "b")], {}),
    "vector": ([node("Mul", "a c", "b")], {"c": floats(WIDTH, seed=1)}),
    "every place": ([node("Add", "a c", "b")], {"c": floats(PLACES, WIDTH, seed=2)}),
    "every sample": ([node("Add", "a c", "b")], {"c": floats(BATCH, 1, 1, seed=3)}),
    "all of it": ([node("Max", "a c", "b")], {"c": floats(BATCH, PLACES, WIDTH, seed=4)}),
    "where": ([node("Where", "c a z", "b")], {"c": floats(PLACES, 1, seed=5) > 0, "z": np.float32(0.1)}),
    "another input": ([node("Add", "a other", "b")], {}),
    "places of another input": ([node("Sub", "a row", "b")], {}),
    "codes": (
        [node("QuantizeLinear", "a s z", "q"), node("DequantizeLinear", "q s z", "b")],
        {"s": np.float32(0.02), "z": np.uint8(128)},
    ),
    "codes at run time": (
        [
            node("DynamicQuantizeLinear", "a", "q s z"),
            node("MatMulInteger", "q w z", "i"),
            node("Cast", "i", "f", to=TensorProto.FLOAT),
            node("Mul", "f s", "g"),
            node("Mul", "g t", "b"),
        ],
        {"w": np.random.default_rng(6).integers(-9, 9, (WIDTH, WIDTH), np.int8), "t": np.float32(0.02)},
    ),
    "rows": (
        [
            node("Abs", "a", "m"),
            node("ReduceMax", "m", "n", axes=[-1]),
            node("Div", "a n", "b"),
        ],
        {},
    ),
    "parts": (
        [node("Split", "a p", "u v", axis=2), node("Tanh", "v", "w"), node("Concat", "w u", "b", axis=-1)],
        {"p": np.array([10, WIDTH - 10])},
    ),
    "sliced": (
        [node("Slice", "a from to last", "u"), node("Concat", "u a", "v", axis=2), node("Gather", "v i", "b", axis=2)],
        {"from": np.array([3]), "to": np.array([9]), "last": np.array([-1]), "i": np.arange(WIDTH)[::-1].copy()},
    ),
    "more axes": (
        [
            node("Unsqueeze", "a two", "u"),
            node("Sigmoid", "u", "v"),
            node("Transpose", "v", "t", perm=[0, 1, 3, 2]),
            node("Squeeze", "t three", "b"),
        ],
        {"two": np.array([2]), "three": np.array([3])},
    ),
    "by heads": (
        [node("Reshape", "a heads", "u"), node("Softmax", "u", "v", axis=2), node("Reshape", "v joined", "b")],
        {},
    ),
    "along places": ([node("Softmax", "a", "b", axis=1)], {}),
    "turned": (
        [
            node("Transpose", "a", "u", perm=[1, 0, 2]),
            node("Exp", "u", "v"),
            node("Transpose", "v", "b", perm=[1, 0, 2]),
        ],
        {},
    ),
    "sums before": ([node("CumSum", "a one", "b")], {"one": np.array(1)}),
    "backwards": ([node("Gather", "a i", "b", axis=1)], {"i": np.arange(PLACES)[::-1].copy()}),
    "one row": (
        [node("Reshape", "a flat", "u"), node("Reshape", "u whole", "b")],
        {"flat": np.array([-1, WIDTH]), "whole": np.array([BATCH, PLACES, WIDTH])},
    ),
    "scores": (
        [
            node("ReduceMean", "a", "u", axes=[2], keepdims=0),
            node("Unsqueeze", "u two", "v"),
            node("Add", "a v", "b"),
        ],
        {"two": np.array([2])},
    ),
}


def renamed(kind: str, source: str, result: str, prefix: str) -> tuple[list[onnx.NodeProto], dict]:
    """What may stand between, with names of its own."""
    nodes, constants = BETWEEN[kind]
    outside = {"a": source, "b": result, **{name: name for name in ("heads", "joined", "other", "row")}}
    made = []
    for each in nodes:
        copy = onnx.NodeProto.FromString(each.SerializeToString())
        copy.name = prefix + each.name
        for names in (copy.input, copy.output):
            names[:] = [outside.get(name, prefix + name) for name in names]
        made.append(copy)
    return made, {prefix + name: array for name, array in constants.items()}


def chain(kinds: list[str], *, outputs: bool) -> onnx.ModelProto:
    """Attention, then each kind with attention behind it."""
    nodes, weights, value, kept = [normalised("x", "h")], {"gamma": floats(WIDTH, seed=9)}, "h", []
    for index, kind in enumerate(kinds):
        made, stored = attention(f"a{index}", value, f"r{index}")
        between, constants = renamed(kind, f"r{index}", f"b{index}", f"k{index}_")
        nodes, weights = [*nodes, *made, *between, normalised(f"b{index}", f"n{index}")], weights | stored | constants
        value = f"n{index}"
        kept += [f"b{index}"] if outputs else []
    shape = [BATCH, PLACES, WIDTH]
    inputs = {
        "x": (TensorProto.FLOAT, shape),
        "other": (TensorProto.FLOAT, shape),
        "row": (TensorProto.FLOAT, shape[1:]),
    }
    read = {name for each in nodes for name in each.input}
    return model(nodes, weights, [value, *kept], **{name: kind for name, kind in inputs.items() if name in read})


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {
        each.name: floats(*[size.dim_value for size in each.type.tensor_type.shape.dim], seed=11)
        for each in proto.graph.input
    }


@pytest.mark.parametrize("kind", BETWEEN)
def test_whatever_stands_between_gives_the_same(kind) -> None:
    proto = chain([kind, "relu"], outputs=False)
    assert changed(proto, **feeds_of(proto))[1] == 6


WORKS_ON_PLACES = ("along places", "turned", "sums before", "backwards", "one row", "places of another input", "scores")


@pytest.mark.parametrize("kind", sorted(set(BETWEEN) - set(WORKS_ON_PLACES)))
def test_what_works_on_each_place_by_itself_needs_no_border(kind) -> None:
    proto = chain([kind, kind, kind, "relu"], outputs=False)
    made, _ = changed(proto, **feeds_of(proto))
    assert borders(made) == 2 + (kind == "another input")  # one Transpose of that input for all


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(BETWEEN)), min_size=1, max_size=4), outputs=st.booleans())
def test_any_sequence_of_them_gives_the_same(kinds, outputs) -> None:
    proto = chain(kinds, outputs=outputs)
    changed(proto, **feeds_of(proto))
