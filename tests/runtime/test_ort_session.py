"""A session that cannot be made says so in an error, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import build, floats, node
from onnx import parser

from onnxq.runtime.ort_session import SessionError, Settings, load_native
from onnxq.runtime.session import open_session, run_session

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'


def test_a_model_that_does_not_load_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime falls back by itself, and says so on stdout: that would stand in front of a report in JSON."""
    tries = []

    def fail(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise RuntimeError("Failed to find node output")

    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", fail)
    model = onnx.ModelProto.SerializeToString(parser.parse_model(MODEL))
    with pytest.raises(SessionError, match="Failed to find node output"):
        load_native(model, Settings())
    assert len(tries) == 1
    assert capsys.readouterr().out == ""


ROWS, MAPS = ["n", "m"], ["n", "c", "h", "w"]
MISFITS = [
    (node("MatMul", "x w", "y"), ROWS, {"w": floats(8, 3)}, (2, 7), "the shapes of its inputs do not fit"),
    (node("Gemm", "x w", "y"), ROWS, {"w": floats(8, 3)}, (2, 7), "its weight [8,3] does not fit rows of 7 values"),
    (node("Add", "x w", "y"), ROWS, {"w": floats(8, 3)}, (2, 7), "its inputs have 3 and 7 in one dimension"),
    (node("Concat", "x w", "y", axis=0), ROWS, {"w": floats(8, 3)}, (2, 7), "its inputs have 3 and 7 in dimension 1"),
    (
        node("Conv", "x w", "y"),
        MAPS,
        {"w": floats(4, 3, 3, 3)},
        (1, 2, 8, 8),
        "its input has 2 channels, and its weight takes 3 in each of 1 groups",
    ),
    (
        node("Conv", "x w", "y"),
        MAPS,
        {"w": floats(4, 3, 3, 3)},
        (1, 3, 2, 8),
        "its window is larger than its input [2,8]",
    ),
    (
        node("ConvTranspose", "x w", "y"),
        MAPS,
        {"w": floats(4, 3, 3, 3)},
        (1, 2, 8, 8),
        "its input has 2 channels, and its weight takes 4",
    ),
    (
        node("GRU", "x w r", "y", hidden_size=5),
        ["t", "n", "m"],
        {"w": floats(1, 15, 24), "r": floats(1, 15, 5)},
        (3, 1, 20),
        "it reads 24 values at a step, and gets 20",
    ),
    (
        node("Pad", "x pads", "y", mode="reflect"),
        ROWS,
        {"pads": np.array([0, 9, 0, 9])},
        (3, 5),
        "it mirrors 9 values of dimension 1, and its input is [3,5]",
    ),
    (node("TopK", "x k", "y places"), ROWS, {"k": np.array([9])}, (2, 3), "it picks 9 of only 3 values"),
]


@pytest.mark.parametrize(
    ("made", "shape", "weights", "given", "said"), MISFITS, ids=[row[0].op_type for row in MISFITS]
)
def test_sizes_that_do_not_fit_are_told_in_plain_words(
    made: onnx.NodeProto, shape: list, weights: dict[str, np.ndarray], given: tuple[int, ...], said: str
) -> None:
    made.name = "y"  # by which onnxruntime calls a Conv that it lays out in blocks
    session = open_session(build([made], {"x": shape}, [made.output[0]], weights).SerializeToString())
    with pytest.raises(SessionError) as refusal:
        run_session(session, None, {"x": np.zeros(given, np.float32)})
    assert str(refusal.value) == f"{made.op_type} node 'y': {said}"


def test_a_rank_that_the_model_does_not_take_is_told_in_plain_words() -> None:
    session = open_session(build([node("Relu", "x", "y")], {"x": ROWS}).SerializeToString())
    with pytest.raises(SessionError, match=r"^input 'x' has 3 dimensions, and the model takes 2$"):
        run_session(session, None, {"x": np.zeros((1, 2, 3), np.float32)})
