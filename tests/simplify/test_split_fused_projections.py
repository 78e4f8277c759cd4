"""Products whose columns are taken apart again: queries, keys and values, as exporters write them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build, count_ops, floats, graph, node, run, typed

from onnxq.ir import load
from onnxq.simplify import simplify
from onnxq.stages.prepare import prepare

C, N = 64, 192
W, B = floats(C, N, seed=1, scale=0.1), floats(N, seed=2)
X = floats(2, 5, C, seed=3)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


BIASED = [node("MatMul", "x w", "p"), node("Add", "b p", "a")]
AXES = {"s5": ints(2, 5, 3, 4, 16), "s0": ints(0, 0, 3, 4, -1), "ones": ints(1, 1, 1), "ax0": ints(0), "ax2": ints(2)}
AXES |= {"thirds": ints(64, 64, 64), "uneven": ints(128, 64), "s4": ints(0, 0, 4, 48), "of48": ints(16, 16, 16)}
AXES |= {f"i{i}": np.array(i, np.int64) for i in range(3)} | {"s3": ints(2, 5, N), "flat": ints(-1, C)}
AXES |= {f"at{i}": ints(i) for i in (0, 1, 2, 3, 999)} | {"one": ints(1), "half": ints(96), "last": ints(-1)}
SQUEEZED = [node("Squeeze", f"h{i} ax0", f"y{i}") for i in range(3)]
CASES = {
    "nanogpt": [
        *BIASED,
        node("Reshape", "a s0", "r"),
        node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
        node("Split", "t ones", "h0 h1 h2", axis=0),
        *SQUEEZED,
    ],
    "split_before_transpose": [
        *BIASED,
        node("Reshape", "a s5", "r"),
        node("Split", "r ones", "h0 h1 h2", axis=2),
        *[node("Squeeze", f"h{i} ax2", f"y{i}") for i in range(3)],
    ],
    "unsqueezed": [*BIASED, node("Reshape", "a s5", "r"), node("Split", "r ones", "y0 y1 y2", axis=-3)],
    "timm": [
        node("MatMul", "x w", "p"),
        node("Reshape", "p s5", "r"),
        node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
        *[node("Gather", f"t i{i}", f"y{i}", axis=0) for i in range(3)],
    ],
    "timm_dynamo": [
        *BIASED,
        node("Reshape", "a s5", "r", allowzero=1),
        node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
        *[node("Slice", f"t at{i} at{i + 1} ax0 one", f"h{i}") for i in range(3)],
        *SQUEEZED,
    ],
    "sliced": [*BIASED, node("Slice", "a at0 half last", "y0"), node("Slice", "a half at999 last", "y1")],
    "gpt2": [*BIASED, node("Split", "a thirds", "y0 y1 y2", axis=2)],
    "gpt2_gemm": [
        node("Reshape", "x flat", "f"),
        node("Gemm", "f w b", "p", alpha=0.5, beta=2.0),
        node("Reshape", "p s3", "a"),
        node("Split", "a thirds", "y0 y1 y2", axis=-1),
    ],
    "multi_query": [*BIASED, node("Split", "a uneven", "y0 y1", axis=2)],
    "neox": [*BIASED, node("Reshape", "a s4", "r"), node("Split", "r of48", "y0 y1 y2", axis=3)],
    "unused_part": [*BIASED, node("Split", "a thirds", "y0 y1 unread", axis=2)],
}


def model(nodes, shape=(2, 5, C), opset=17):
    made = {name for item in nodes for name in item.output}
    read = {name for item in nodes for name in item.input}
    outputs = sorted(made - read - {"unread"})
    weights = {name: array for name, array in ({"w": W, "b": B} | AXES).items() if name in read}
    return build(nodes, {"x": list(shape)}, outputs, weights, opset)


def products(found) -> int:
    return sum(item.op_type in ("MatMul", "Gemm") for item in found.model.graph.nodes)


@pytest.mark.parametrize("shape", [(2, 5, C), ("batch", "time", C)], ids=["fixed", "open"])
@pytest.mark.parametrize("case", CASES)
def test_every_part_has_a_product_of_its_own(case, shape):
    proto = model(CASES[case], shape)
    found = simplify(typed(proto), only=["split_fused_projections"])
    assert products(found) == (2 if case in ("multi_query", "unused_part", "sliced") else 3)
    left = count_ops(onnx.ModelProto.FromString(found.model.serialize()))
    assert not left.keys() & {"Split", "Gather", "Slice", "Squeeze"}
    assert left["Transpose"] == (3 if case in ("nanogpt", "timm", "timm_dynamo") else 0)
    for got, expected in zip(
        run(found.model.serialize(), {"x": X}), run(proto.SerializeToString(), {"x": X}), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)  # float sums in another order


@pytest.mark.parametrize(
    "nodes",
    [
        [*BIASED, node("Split", "a thirds", "y0 y1 y2", axis=2), node("Relu", "a", "y3")],
        [*BIASED, node("Relu", "p", "y3"), node("Split", "a thirds", "y0 y1 y2", axis=2)],
        [*BIASED, node("Split", "a", "y0 y1", axis=0)],
        [*BIASED, node("Relu", "a", "r"), node("Split", "r thirds", "y0 y1 y2", axis=2)],
        [*BIASED, node("Reshape", "a s5", "r"), node("Gather", "r i0", "y0", axis=2), node("Relu", "r", "y1")],
        [*BIASED, *[node("Slice", f"a at{i} at999 last at2", f"y{i}") for i in (0, 1)]],
        [node("MatMul", "x w", "p"), node("Split", "p thirds", "y0 y1 y2", axis=2), node("MatMul", "x w", "y3")],
    ],
    ids=["sum_read", "product_read", "rows_split", "function_between", "whole_read", "every_other", "tied_weight"],
)
def test_what_is_read_in_other_ways_stays_whole(nodes):
    assert simplify(typed(model(nodes)), only=["split_fused_projections"]).original is None


def test_what_bodies_take_apart_stays_whole():
    """Each part would have to be computed in a body, and the patch is one of the graph around it."""
    parts = {
        branch: graph([node("Slice", f"p {first} last", f"{branch}_y")], {}, [f"{branch}_y"], {})
        for branch, first in (("then_branch", "at0 half"), ("else_branch", "half at999"))
    }
    nodes = [node("MatMul", "x w", "p"), node("If", "c", "y", **parts)]
    proto = build(nodes, {"x": list(X.shape), "c": (onnx.TensorProto.BOOL, [])}, weights={"w": W} | AXES)
    model = typed(proto)
    assert simplify(model, ["split_fused_projections"]).notes == ()


def test_slices_without_axes_stay_whole():
    """Their steps were taken for the axes."""
    nodes = [node("MatMul", "x w", "p"), node("Reshape", "p whole", "r")]
    nodes += [node("Slice", f"r at{i} at{i + 1} - one", f"y{i}") for i in (0, 1)]
    constants = {name: AXES[name] for name in ("at0", "at1", "at2", "one")}
    constants |= {"w": floats(64, 128, seed=1), "whole": ints(2, 2, 64)}
    proto = build(nodes, {"x": [2, 64]}, ("y0", "y1"), constants)
    assert simplify(typed(proto), only=["split_fused_projections"]).original is None


@pytest.mark.parametrize(("recipe", "count"), [("auto", 3), ("dynamic-int8", 3), ("weight-int8", 1)])
def test_products_in_float_stay_whole(recipe, count, tmp_path):
    """A product by itself is no faster than its columns' share of a larger one: only the copies are spared."""
    (tmp_path / "m.onnx").write_bytes(model(CASES["gpt2"]).SerializeToString())
    prepared = prepare(load(tmp_path / "m.onnx"), recipe, with_data=False)
    assert sum(item.op_type == "MatMul" for item in prepared.model.graph.nodes) == count
