"""Softmax along axes where onnxruntime is slow: what stands there afterwards, and where it stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import ALL, floats, session
from hypothesis import given, settings
from hypothesis import strategies as st
from spelled_support import assert_same, simplified

TURNED = ["Transpose", "Reshape", "Softmax", "Shape", "Reshape", "Transpose"]


def text(shape: str, axis: int, op_type: str = "Softmax") -> str:
    return f"g (float[{shape}] x) => (float[{shape}] y) {{ y = {op_type} <axis = {axis}> (x) }}"


def test_it_works_on_rows_of_a_matrix():
    found = simplified(text("2,4,2,3", 1), {}, "softmax_last_axis", 13)
    assert found.notes == ("moved 1 Softmax to the last axis",)
    nodes = found.model.graph.nodes
    assert [node.op_type for node in nodes] == TURNED
    assert [nodes[0].attribute("perm"), nodes[5].attribute("perm")] == [[0, 2, 3, 1], [0, 3, 1, 2]]
    assert nodes[1].inputs[1].constant.numpy().tolist() == [-1, 4]
    assert nodes[3].inputs == [nodes[0].outputs[0]]
    assert nodes[4].inputs[1] is nodes[3].outputs[0]
    assert nodes[2].attribute("axis") == 1
    assert_same(found, {"x": floats(2, 4, 2, 3, scale=5)}, 1e-6)


@pytest.mark.parametrize(
    ("shape", "axis", "opset"),
    [
        ("2,8,5", 1, 13),  # one axis behind: onnxruntime swaps two, which is fast
        ("2,8,5,1", 1, 13),
        ("2,2,8,8", -1, 13),
        ("2,3,8,8", 1, 13),  # few elements
        ("2,8,H,8", 1, 13),  # two sizes are not known
        ("2,C,8,8", 1, 13),
        ("2,8,8,0", 1, 13),  # -1 could be anything
        ("2,8,4,4", 1, 11),  # over all axes behind together
    ],
)
def test_elsewhere_it_stays(shape, axis, opset):
    assert simplified(text(shape, axis), {}, "softmax_last_axis", opset).notes == ()


def test_onnxruntime_does_not_undo_it(tmp_path):
    found = simplified(text("2,8,4,4", 1), {}, "softmax_last_axis", 17)
    session(found.model.serialize(), ALL, str(tmp_path / "m.onnx"))
    kept = [
        node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type not in ("Shape", "Gather")
    ]
    assert kept == [op_type for op_type in TURNED if op_type != "Shape"]


def test_a_batch_of_any_size_stays():
    """What is stated behind it need not be true: exporters state the batch that they had."""
    assert (
        simplified(
            "g (float[N,8,4,4] x) => (float[2,8,4,4] y) { y = Softmax <axis = 1> (x) }", {}, "softmax_last_axis"
        ).notes
        == ()
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_axis(data):
    rank = data.draw(st.integers(3, 5), "rank")
    shape = [data.draw(st.sampled_from([1, 2, 4, 5]), f"length {axis}") for axis in range(rank)]
    axis = data.draw(st.integers(-rank, rank - 1), "axis")
    op_type = data.draw(st.sampled_from(["Softmax", "LogSoftmax"]), "operator")
    behind = [size for size in shape[axis % rank + 1 :] if size > 1]
    found = simplified(text(",".join(map(str, shape)), axis, op_type), {}, "softmax_last_axis", 13)
    assert bool(found.notes) == (shape[axis] >= 4 and len(behind) > 1)
    if found.notes:
        assert_same(found, {"x": floats(*shape, scale=5)}, 1e-6)
        assert np.prod(found.model.graph.nodes[2].outputs[0].shape) == np.prod(shape)
