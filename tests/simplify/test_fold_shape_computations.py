"""Shapes of Reshape and Expand that are stated instead of computed."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx
import pytest
from exported_support import attention_of, bert_like, gpt_like, ids_of
from helpers import build, floats, graph, node, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from support import assert_same, simplified, written

I64 = np.int64
ERRORS = (Fail, InvalidArgument, RuntimeException)
NUMBERS = {"i0": I64(0), "i1": I64(1), "i2": I64(2), "axis0": I64([0]), "two": I64([2]), "rest": I64([-1])}


def computed(op_type, shape, elements, of="x", inputs=None, **attributes):
    """An operator on x whose shape is written element by element: an axis of `of`, or a number."""
    weights, parts = dict(NUMBERS), []
    nodes = [node("Shape", of, "s")]
    for place, element in enumerate(elements):
        parts.append(f"e{place}")
        if isinstance(element, str):
            nodes.append(node("Gather", f"s i{element}", f"g{place}", axis=0))
            nodes.append(node("Unsqueeze", f"g{place} axis0", f"e{place}"))
        else:
            weights[f"e{place}"] = I64([element])
    nodes += [node("Concat", " ".join(parts), "t", axis=0), node(op_type, "x t", "y", **attributes)]
    used = {name for made in nodes for name in made.input}
    return build(nodes, {"x": shape, **(inputs or {})}, weights={k: v for k, v in weights.items() if k in used})


STATED = {
    "all copied": ("Reshape", ["n", "m", 6], ["0", "1", 2, 3], [0, 0, 2, 3]),
    "what is left is a number": ("Reshape", ["n", "m", 6], ["0", "1", -1, 3], [0, 0, 2, 3]),
    "what is left is a copy": ("Reshape", ["n", "m", 2, 3], ["0", -1, 6], [0, 0, 6]),
    "what is left": ("Reshape", ["n", "m", "k"], ["0", -1], [0, -1]),
    "one moved, beside numbers": ("Reshape", [6, "m"], ["1", 2, 3], [-1, 2, 3]),
    "a single copy, beside numbers": ("Reshape", ["n", 4, 6], ["0", "1", 2, 3], [-1, 4, 2, 3]),
    "numbers": ("Reshape", ["n", 2, 3], [3, "1", -1], [3, 2, -1]),
    "expanded": ("Expand", ["n", 1, 4], ["0", 3, 4], [1, 3, 1]),
    "expanded in front": ("Expand", ["n", 4], [2, "0", 1], [2, 1, 1]),
}


@pytest.mark.parametrize("case", STATED)
def test_a_shape_that_is_known_is_stated(case):
    op_type, shape, elements, target = STATED[case]
    proto = computed(op_type, shape, elements)
    found = simplified(proto, "fold_shape_computations")
    assert written(found.model) == [f"y = {op_type}(x, {target})"]
    assert found.notes == ("replaced 1 computed shape by constants",)
    assert_same_where_accepted(proto, found.model.serialize(), shape)


COMPUTED = {
    "two moved": ("Reshape", ["n", "m", 6], ["1", "0", 6]),
    "two new": ("Reshape", ["n", "m", 6], ["1", 1, "0", 6]),
    "one moved, beside a copy that may be 0": ("Reshape", ["n", "m", 6, 2], ["0", "1", 12]),
    "expanded to a size": ("Expand", [1, "m"], ["1", "1"]),
}


@pytest.mark.parametrize("case", COMPUTED)
def test_a_shape_that_is_not_known_is_still_computed(case):
    op_type, shape, elements = COMPUTED[case]
    if case.startswith("one moved"):
        proto = merged_axes()
    else:
        proto = computed(op_type, shape, elements)
    assert simplified(proto, "fold_shape_computations").notes == ()


def merged_axes():
    """Axes 1 and 2 of x as one: `[n, -1, k]` would be refused where n or k is 0."""
    nodes = [
        node("Shape", "x", "s"),
        node("Slice", "s zero one", "n"),
        node("Slice", "s one two", "m"),
        node("Slice", "s three four", "k"),
        node("Mul", "m five", "wide"),
        node("Concat", "n wide k", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    weights = dict(zip(("zero", "one", "two", "three", "four", "five"), (I64([i]) for i in range(6)), strict=True))
    return build(nodes, {"x": ["n", "m", 5, "k"]}, weights=weights)


def test_sizes_of_another_input_prove_nothing():
    """That both inputs state the same names is not believed: onnxruntime does not ask for it."""
    proto = computed("Reshape", ["n", "m", 6], ["0", "1", 2, 3], of="z", inputs={"z": ["n", "m"]})
    assert simplified(proto, "fold_shape_computations").notes == ()
    found = run(proto.SerializeToString(), {"x": floats(2, 3, 6), "z": floats(3, 2)})
    assert found[0].shape == (3, 2, 2, 3)


def test_a_zero_that_means_zero_is_not_a_copy():
    """With allowzero, only numbers and what is left of them can be stated."""
    proto = computed("Reshape", ["n", "m", 6], ["0", "1", 2, 3], allowzero=1)
    assert simplified(proto, "fold_shape_computations").notes == ()
    proto = computed("Reshape", ["n", 6], ["0", 2, 3], allowzero=1)
    found = simplified(proto, "fold_shape_computations")
    assert written(found.model) == ["y = Reshape(x, [-1, 2, 3], allowzero=1)"]
    assert_same(proto, found, [{"x": floats(n, 6)} for n in (0, 1, 3)])


def test_a_computed_zero_copies_the_size_of_another_axis():
    """With n = 0, the target is [0, 0, 4, 3], and its first 0 means 3: the model itself is no reshape to n, n, 4, 3."""
    proto = computed("Reshape", [3, "n", 4], ["1", "1", "2", 3])
    assert simplified(proto, "fold_shape_computations").notes == ()
    nodes = [*proto.graph.node, node("Shape", "y", "z")]
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in proto.graph.initializer}
    whole = build(nodes, {"x": [3, "n", 4]}, {"z": 7}, weights)
    found = simplified(whole)
    assert_same(whole, found, [{"x": floats(3, n, 4)} for n in (0, 1)])
    assert run(whole.SerializeToString(), {"x": floats(3, 0, 4)})[0].tolist() == [3, 0, 4, 3]


def test_a_decoder_states_all_its_shapes():
    proto = gpt_like(layers=2)
    found = simplified(proto, "fold_shape_computations")
    assert found.notes == ("replaced 8 computed shapes by constants",)
    assert sum("Reshape" in line and "[0, 0, " in line for line in written(found.model)) == 8
    assert_same(proto, found, [{"ids": ids_of(n, t)} for n, t in ((1, 1), (2, 7), (3, 16), (0, 5), (2, 0), (0, 0))])


def test_an_encoder_whose_mask_could_be_of_a_larger_batch():
    """What is left of the products may have the batch of the mask: their last shape stays computed."""
    proto = bert_like(layers=2)
    found = simplified(proto, "fold_shape_computations")
    assert found.notes == ("replaced 6 computed shapes by constants",)
    sizes = ((1, 1), (2, 7), (3, 16))
    assert_same(proto, found, [{"ids": ids_of(n, t), "attention": attention_of(n, t)} for n, t in sizes])
    assert_same(proto, found, [{"ids": ids_of(3, 5), "attention": attention_of(1, 5)}])


def assert_same_where_accepted(proto, after, shape):
    """Both give the same for many sizes, 0 among them, wherever the first gives anything."""
    accepted = 0
    for sizes in ((1, 1, 1), (2, 3, 4), (5, 1, 2), (0, 3, 2), (3, 0, 2), (0, 0, 3), (2, 3, 0)):
        named = iter(sizes)
        x = floats(*(size if isinstance(size, int) else next(named) for size in shape))
        try:
            expected = run(proto.SerializeToString(), {"x": x})[0]
        except ERRORS:
            continue
        (got,) = run(after, {"x": x})
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)
        accepted += 1
    assert accepted >= 1


# A chain: what is done to which value, and with which sizes
STEPS = st.tuples(st.integers(0, 8), st.integers(0, 9), st.lists(st.integers(0, 19), min_size=1, max_size=4))
SIZES = st.sampled_from([0, 1, 2, 3, 5])


class Chain:
    """A model of random reshapes, every size in it computed."""

    def __init__(self):
        self.nodes = [node("Relu", "x", "v0"), node("Relu", "z", "v1")]
        self.ranks = {"v0": 3, "v1": 2}
        self.sizes = []
        self.weights = {f"c{n}": I64([n]) for n in (-1, 0, 1, 2, 3, 6)} | {f"i{n}": I64([n]) for n in range(6)}
        self.weights["table"] = floats(4, 6, seed=3)
        for value in self.ranks:
            self.sizes += [self.size(value, axis) for axis in range(self.ranks[value])]

    def op(self, op_type, inputs, **attributes):
        output = f"a{len(self.nodes)}"
        self.nodes.append(node(op_type, inputs, output, **attributes))
        return output

    def size(self, value, axis):
        return self.op("Gather", f"{self.op('Shape', value)} i{axis}", axis=0)

    def add(self, value, rank):
        if rank <= 5:
            self.ranks[value] = rank

    def step(self, kind, which, picks):
        value = list(self.ranks)[-1 - which % len(self.ranks)]
        rank = self.ranks[value]
        own = [self.size(value, axis) for axis in range(rank)]
        pool = [*self.sizes, *own, *(name for name in self.weights if name.startswith("c"))]
        chosen = [pool[-1 - pick % len(pool)] for pick in picks]
        at = picks[0] % max(rank, 1)
        if kind == 0:
            first, second = chosen[0], chosen[-1]
            self.sizes.append(
                self.op(("Mul", "Add", "Sub", "Div")[picks[0] % 4 if picks[0] % 4 < 3 else 0], f"{first} {second}")
            )
        elif kind == 1 and rank:
            self.add(self.op("Transpose", value, perm=[*range(1, rank), 0]), rank)
        elif kind == 2 and rank > 1:  # two axes as one
            at = picks[0] % (rank - 1)
            merged = "c-1" if picks[-1] % 2 else self.op("Mul", f"{own[at]} {own[at + 1]}")
            self.reshape(value, [*own[:at], merged, *own[at + 2 :]])
        elif kind == 3 and rank:  # one as two
            self.reshape(value, [*own[:at], "c-1", f"c{(1, 2, 3)[picks[-1] % 3]}", *own[at + 1 :]])
        elif kind == 4:
            self.reshape(value, chosen, allowzero=set(chosen) <= set(own))  # there, -1 is not allowed beside a 0
        elif kind == 5:
            other = list(self.ranks)[picks[0] % len(self.ranks)]
            self.add(self.op("Add", f"{value} {other}"), max(rank, self.ranks[other]))
        elif kind == 6:
            self.add(
                self.op("Expand", f"{value} {self.op('Concat', ' '.join(chosen), axis=0)}"), max(rank, len(chosen))
            )
        elif kind == 7:
            self.add(self.op("Slice", f"table i0 {chosen[0]} i{picks[-1] % 2}"), 2)
        elif kind == 8:
            self.add(self.op("ConstantOfShape", self.op("Concat", " ".join(chosen), axis=0)), len(chosen))

    def reshape(self, value, parts, allowzero=False):
        attributes = {"allowzero": 1} if allowzero else {}
        target = self.op("Concat", " ".join(parts), axis=0)
        self.add(self.op("Reshape", f"{value} {target}", **attributes), len(parts))

    def model(self):
        outputs = dict.fromkeys(list(self.ranks)[2:][-4:], 1) or {"v0": 1}
        for place, size in enumerate(self.sizes[-3:]):
            self.nodes.append(node("Identity", size, f"size{place}"))
            outputs[f"size{place}"] = 7
        used = {name for made in self.nodes for name in made.input}
        weights = {name: array for name, array in self.weights.items() if name in used}
        made = graph(self.nodes, {"x": ["a", "b", 6], "z": ["a", "b"]}, outputs, weights)
        for output in made.output:
            shape = [None] * self.ranks.get(output.name, 1)
            output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, outputs[output.name], shape))
        return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@given(st.lists(STEPS, min_size=1, max_size=6), st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_random_chains_give_the_same(steps, feeds):
    chain = Chain()
    for step in steps:
        chain.step(*step)
    proto = chain.model()
    accepted = []
    for a, b, c, d in feeds:
        sample = {"x": floats(a, b, 6, seed=1), "z": floats(c, d, seed=2)}
        with suppress(*ERRORS):
            accepted.append((sample, run(proto.SerializeToString(), sample)))
    if accepted:
        after = simplified(
            proto, "eliminate_no_ops", "fold_shape_computations", "share_shape_computations"
        ).model.serialize()
    for sample, expected in accepted:
        for one, other in zip(expected, run(after, sample), strict=True):
            assert one.shape == other.shape
            np.testing.assert_array_equal(one, other)


def test_halves_of_channels_are_counted_like_torch_chunk_does():
    """A shuffle of channels, whose first half is `x[:, : (c + 1) / 2]`: each block of a ShuffleNet asked for sizes."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i1", "c", axis=0),
        node("Add", "c i1", "more"),
        node("Div", "more two", "half"),
        node("Slice", "x axis0 half i1", "left"),
        node("Shape", "left", "t"),
        node("Gather", "t i1", "d", axis=0),
        node("Concat", "rest two d", "target", axis=0),
        node("Concat", "left left", "whole", axis=1),
        node("Reshape", "whole target", "y"),
    ]
    weights = {"i1": I64([1]), "two": I64([2]), "axis0": I64([0]), "rest": I64([-1])}
    proto = build(nodes, {"x": ["n", 4]}, weights=weights)
    found = simplified(proto)
    assert written(found.model) == [
        "left = Slice(x, [0], [2], [1])",
        "whole = Concat(left, left, axis=1)",
        "y = Reshape(whole, [-1, 2, 2])",
    ]
    assert_same(proto, found, [{"x": floats(3, 4)}])
