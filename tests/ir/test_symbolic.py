"""Sizes that are followed through a graph are those that onnxruntime finds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, run
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.ir import infer_types, parse
from onnxq.ir.shape_inference.dims import Cut, Size, Widest, broadcast, fresh, limit_axis
from onnxq.ir.shape_inference.symbolic import Shapes

I64 = np.int64
N, M = Size(1, ("x:0",)), Size(1, ("x:1",))
OUTPUT = parse(build([node("Relu", "x", "y")], {"x": ["n"]}).SerializeToString()).graph.outputs[0]


def symbol(name):
    return Size(1, (name,))


def number(size, sizes):
    """What a size is at run time."""
    found = size.number
    for name in size.symbols:
        if isinstance(name, Widest):
            found *= int(np.broadcast_shapes(*((number(part, sizes),) for part in name.parts))[0])
        elif isinstance(name, Cut):
            found *= min(number(name.size, sizes), int(name.rpartition(" ")[2].removesuffix(")")))
        else:
            found *= sizes[name]
    return found


SIZES = st.sampled_from([1, 2, "a", "b", "c", "d"])


@given(
    st.lists(st.lists(SIZES, max_size=3), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 2, 2, 5]), min_size=4, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_broadcasting_agrees_with_numpy(shapes, values):
    """One after the other, in either direction, or all at once: the size is the same, and so is its symbol."""
    sizes = dict(zip("abcd", values, strict=True))
    try:
        expected = np.broadcast_shapes(*([sizes.get(s, s) for s in shape] for shape in shapes))
    except ValueError:
        return
    ours = [tuple(symbol(s) if isinstance(s, str) else Size(s) for s in shape) for shape in shapes]
    at_once, forwards, backwards = broadcast(ours, OUTPUT), ours[0], ours[-1]
    for one, other in zip(ours, ours[::-1], strict=True):
        forwards, backwards = broadcast([forwards, one], OUTPUT), broadcast([other, backwards], OUTPUT)
    assert at_once == forwards == backwards
    assert tuple(number(size, sizes) for size in at_once) == expected


@pytest.mark.parametrize("count", range(6))
def test_a_cut_size_broadcasts_with_the_whole_one(count):
    """A table of 3 rows is cut to n rows, and meets n others."""
    n = symbol("n")
    part = limit_axis(n, 3, fresh(OUTPUT, 0))
    assert number(part, {"n": count}) == min(count, 3)
    assert broadcast([(part,), (n,)], OUTPUT) == broadcast([(n,), (part,)], OUTPUT) == (n,)
    assert broadcast([(part,), (symbol("m"),)], OUTPUT) not in ((part,), (symbol("m"),))
    inner = limit_axis(part, 2, n)
    assert broadcast([(inner,), (part,), (n,)], OUTPUT) == (n,)
    assert broadcast([(inner,), (part,)], OUTPUT) == (part,)


def test_a_symbol_of_too_many_is_a_new_one():
    many = [(symbol("s" * 40 + str(index)),) for index in range(12)]
    assert broadcast(many, OUTPUT) == (fresh(OUTPUT, 0),)
    assert limit_axis(symbol("s" * 500), 3, fresh(OUTPUT, 0)) == fresh(OUTPUT, 0)


def shapes_of(nodes, weights, inputs=None, outputs=None):
    """Shapes of a model of int64 outputs, which is a sound one."""
    used = {name for made in nodes for name in made.input}
    weights = {name: array for name, array in weights.items() if name in used}
    proto = build(nodes, inputs or {"x": ["n", "m"]}, outputs or {nodes[-1].output[0]: 7}, weights)
    model = parse(proto.SerializeToString())
    infer_types(model)
    return proto, model, Shapes(model.graph, model.opset)


SHAPE = [node("Shape", "x", "s")]
FILLED = onnx.numpy_helper.from_array(I64([1]))
CONTENTS = {
    "sum": ([node("Add", "s s", "y")], (Size(2, N.symbols), Size(2, M.symbols))),
    "nothing left": ([node("Sub", "s s", "y")], (Size(0), Size(0))),
    "sum of two": ([node("Gather", "s turned", "t"), node("Add", "s t", "y")], None),
    "one more": ([node("Add", "s ones", "y")], None),
    "product": ([node("ReduceProd", "s", "y", keepdims=1)], (N * M,)),
    "elements": ([node("Size", "x", "y")], (N * M,)),
    "of elements": ([node("Reshape", "s open", "y")], (N, M)),
    "which was left open": (
        [
            node("Concat", "s minus", "t", axis=0),
            node("Shape", "t", "count"),
            node("ConstantOfShape", "count", "filled", value=FILLED),
            node("Mul", "filled minus", "opened"),
            node("Equal", "t opened", "which"),
            node("Where", "which filled t", "y"),
        ],
        (N, M, Size(1)),
    ),
    "perhaps 1": (
        [
            node("Equal", "s ones", "which"),
            node("Where", "which s ones", "y"),
        ],
        None,
    ),
    "a matrix of products": (
        [node("Unsqueeze", "s axis0", "row"), node("Unsqueeze", "s axis1", "column"), node("Mul", "row column", "y")],
        None,
    ),
    "columns": (
        [node("Unsqueeze", "s axis1", "column"), node("Concat", "column column", "y", axis=1)],
        None,
    ),
    "negative": ([node("Mul", "s minus", "y")], None),
    "rows apart again": (
        [
            node("Unsqueeze", "x axis2", "u"),
            node("MatMul", "u eight", "wide"),
            node("Reshape", "wide rows", "r"),
            node("Concat", "s heads", "apart", axis=0),
            node("Reshape", "r apart", "heads_apart"),
            node("Shape", "heads_apart", "y"),
        ],
        (N, M, Size(2), Size(4)),
    ),
    "the larger of the same": ([node("Max", "s s", "y")], (N, M)),
    "the smaller of numbers": (
        [node("Concat", "ones ones", "c", axis=0), node("Min", "c minus ones", "y")],
        (Size(-1), Size(-1)),
    ),
    "half of an odd number": ([node("Div", "seven twos", "y")], (Size(3),)),
    "half of a size": ([node("Div", "s twos", "y")], None),
    "the larger of others": ([node("Max", "s ones", "y")], None),
}
WEIGHTS = {
    "minus": I64([-1]), "ones": I64([1]), "open": I64([-1]), "axis0": I64([0]), "axis1": I64([1]),
    "turned": I64([1, 0]), "axis2": I64([2]), "eight": floats(1, 8), "rows": I64([-1, 8]), "heads": I64([2, 4]),
    "seven": I64([7]), "twos": I64([2]),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_numbers_made_of_sizes(case):
    nodes, expected = CONTENTS[case]
    proto, model, shapes = shapes_of([*SHAPE, *nodes], WEIGHTS)
    found = shapes.content(model.graph.outputs[0])
    assert found == expected
    for n, m in ((2, 3), (1, 1), (0, 4)):
        (got,) = run(proto.SerializeToString(), {"x": floats(n, m)})
        sizes = {"x:0": n, "x:1": m}
        assert found is None or [number(size, sizes) for size in found] == got.reshape(-1).tolist()


LAID_OUT = {
    "range": ([node("Range", "zero count one", "y")], (N,)),
    "range from 1": ([node("Range", "one count one", "y")], None),
    "filled": ([node("ConstantOfShape", "s", "y", value=FILLED)], (N, M)),
    "cut": ([node("Slice", "table axis0 n axis1", "y")], (Size(7), limit_axis(N, 5, N))),
    "cut elsewhere": ([node("Slice", "table axis1 n axis1", "y")], None),
}


@pytest.mark.parametrize("case", LAID_OUT)
def test_shapes_made_of_sizes(case):
    nodes, expected = LAID_OUT[case]
    sizes = [*SHAPE, node("Gather", "s zero", "count", axis=0), node("Gather", "s axis0", "n", axis=0)]
    read = {name for made in nodes for name in made.input}
    used = [made for made in sizes if made.output[0] in read | {"s"}]
    table = np.arange(35).reshape(7, 5)
    proto, model, shapes = shapes_of([*used, *nodes], {**WEIGHTS, "zero": I64(0), "one": I64(1), "table": table})
    found = shapes.of(model.graph.outputs[0])
    assert expected is None or found == expected
    for n, m in ((2, 3), (1, 1), (0, 4), (9, 2)):
        (got,) = run(proto.SerializeToString(), {"x": floats(n, m)})
        known = {"x:0": n, "x:1": m}
        assert expected is None or tuple(number(size, known) for size in found) == got.shape
    assert expected is not None or found[-1] not in (N, M)
