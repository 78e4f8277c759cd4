"""Every defect that a quantized model can have, one planted at a time, and sound models that have none."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import F, build, floats, graph, node
from ml_dtypes import int2, int4
from onnx import TensorProto, helper, numpy_helper

from onnxq.errors import ModelError
from onnxq.ir import load, parse
from onnxq.verification.wellformed import Defect, find_defects

SAMPLES = sorted((Path(__file__).parents[2] / "sample_models").glob("*.onnx"))
U8, I8 = np.uint8, np.int8
ZERO = np.array(3, U8)


def defects(proto: onnx.ModelProto) -> list[Defect]:
    return find_defects(parse(proto.SerializeToString()))


def unchecked(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    opset: int = 21,
    shape: Any = (2, 4),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model that onnx.checker has not seen: x → y."""
    made = graph(nodes, {"x": (TensorProto.FLOAT, shape)}, ["y"], weights)
    imports = [helper.make_opsetid(d, v) for d, v in {"": opset, **(domains or {})}.items()]
    return helper.make_model(made, opset_imports=imports, ir_version=10)


def pair(
    scale: Any = 0.5, zero: Any = ZERO, opset: int = 21, shape: Any = (2, 4), **attributes: Any
) -> onnx.ModelProto:
    """x → QuantizeLinear → DequantizeLinear → y with shared parameters."""
    weights = {"s": np.asarray(scale, getattr(scale, "dtype", F)), "z": np.asarray(zero)}
    nodes = [node("QuantizeLinear", "x s z", "q", **attributes), node("DequantizeLinear", "q s z", "y", **attributes)]
    return unchecked(nodes, weights, opset, shape)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_sound_models_have_no_defect(path: Path) -> None:
    assert find_defects(load(path)) == []


@pytest.mark.parametrize(
    "model",
    [
        pair(),
        pair(np.array([0.5], F), np.array([3], U8)),
        pair(np.full(4, 0.5, F), np.zeros(4, U8), axis=1),
        pair(np.full(4, 0.5, F), np.zeros(4, U8), axis=-1),
        pair(np.full(4, 0.5, F), np.zeros(4, U8)),  # the default axis is 1
        pair(np.full((2, 2), 0.5, F), np.zeros((2, 2), I8), axis=1, block_size=3),
        pair(np.full(2, 0.5, F), np.zeros(2, U8), axis=0, shape=(None, 4)),
    ],
)
def test_sound_pairs_have_no_defect(model: onnx.ModelProto) -> None:
    assert defects(model) == []


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (pair(0.0), "QuantizeLinear 'n_q' has a scale 's' that is zero: 0"),
        (pair(np.nan), "QuantizeLinear 'n_q' has a scale 's' that is not finite: nan"),
        (
            pair(np.array([1, np.inf, 1, np.inf], F), np.zeros(4, U8)),
            "QuantizeLinear 'n_q' has a scale 's'[1] that is not finite: inf; so are 1 others of 4",
        ),
        (pair(-0.5), "QuantizeLinear 'n_q' has a scale 's' that is negative: -0.5"),
        (
            pair(np.full(4, 0.5, F), np.zeros(3, U8)),
            "QuantizeLinear 'n_q' has a zero point 'z' of shape [3] for a scale of shape [4]",
        ),
        (
            pair(np.full(4, 0.5, F)),
            "QuantizeLinear 'n_q' has a zero point 'z' of shape [] for a scale of shape [4]",
        ),
        (
            pair(np.full(3, 0.5, F), np.zeros(3, U8)),
            "QuantizeLinear 'n_q' has a scale 's' of 3 numbers for 4 channels: axis 1 of the shape [2, 4]",
        ),
        (pair(np.full(4, 0.5, F), np.zeros(4, U8), axis=2), "QuantizeLinear 'n_q' has axis 2, but 'x' has rank 2"),
        (
            pair(np.full((2, 2), 0.5, F), np.zeros((2, 2), U8)),
            "QuantizeLinear 'n_q' has a scale 's' of shape [2, 2] and no block_size",
        ),
        (
            pair(np.full((2, 3), 0.5, F), np.zeros((2, 3), U8), axis=1, block_size=2),
            "QuantizeLinear 'n_q' cuts [2, 4] into blocks of 2 along axis 1, which needs scales of shape [2, 2], "
            "but 's' has [2, 3]",
        ),
        (
            pair(0.5, block_size=2),
            "QuantizeLinear 'n_q' has block_size 2, so that its scale 's' [] needs rank 2",
        ),
        (
            pair(np.full(4, 0.5, F), np.zeros(4, U8), opset=10),
            "QuantizeLinear 'n_q' has a scale 's' for each channel, which needs opset 13, but the model has opset 10",
        ),
        (
            pair(np.float16(0.5), opset=17),
            "QuantizeLinear 'n_q' works on float16, which needs opset 19, but the model has opset 17",
        ),
        (
            pair(0.5, np.int16(0), opset=20),
            "QuantizeLinear 'n_q' works on int16, which needs opset 21, but the model has opset 20",
        ),
        (
            pair(0.5, np.array(0, int4), opset=19),
            "QuantizeLinear 'n_q' works on int4, which needs opset 21, but the model has opset 19",
        ),
        (
            pair(0.5, np.array(0, int2), opset=24),
            "QuantizeLinear 'n_q' works on int2, which needs opset 25, but the model has opset 24",
        ),
        (
            pair(np.full((2, 2), 0.5, F), np.zeros((2, 2), U8), opset=19, axis=1, block_size=2),
            "QuantizeLinear 'n_q' has the attribute block_size, which needs opset 21, but the model has opset 19",
        ),
    ],
)
def test_a_planted_defect_is_the_first_found(model: onnx.ModelProto, sentence: str) -> None:
    found = defects(model)
    assert found[0] == Defect("n_q", found[0].tensor, sentence)


def test_types_of_zero_point_and_codes() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s i", "y")]
    model = unchecked(nodes, {"s": np.array(1, F), "z": np.array(0, U8), "i": np.array(0, I8)})
    assert defects(model)[0].sentence == "DequantizeLinear 'n_y' has a zero point 'i' of type int8 for uint8 codes"
    nodes = [
        node("QuantizeLinear", "x s z", "q", output_dtype=TensorProto.INT8),
        node("DequantizeLinear", "q s z", "y"),
    ]
    model = unchecked(nodes, {"s": np.array(1, F), "z": np.array(0, U8)})
    assert defects(model)[0].sentence == "QuantizeLinear 'n_q' has a zero point 'z' of type uint8 for int8 codes"


def test_codes_that_an_operator_cannot_read() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("Softmax", "q", "y")]
    (found, *_) = defects(unchecked(nodes, {"s": np.array(1, F), "z": np.array(0, U8)}))
    assert found.node == "n_y"
    assert "reads the uint8 codes 'q' of QuantizeLinear 'n_q', which it cannot take" in found.sentence


def test_dequantizing_what_was_never_quantized() -> None:
    (found, *_) = defects(unchecked([node("DequantizeLinear", "x s", "y")], {"s": np.array(1, F)}))
    assert (found.node, found.tensor, found.is_error) == ("n_y", "x", True)
    assert found.sentence.endswith("reads 'x', which is float: numbers that were never quantized")


def test_warnings_are_no_errors() -> None:
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q t z", "y")]
    nodes.append(node("QuantizeLinear", "x s z", "unread"))
    found = defects(unchecked(nodes, {"s": np.array(1, F), "t": np.array(2, F), "z": np.array(0, U8)}))
    assert [(d.node, d.is_error) for d in found] == [("n_y", False), ("n_unread", False)]
    assert "has another scale than QuantizeLinear 'n_q', whose codes 'q' it reads" in found[0].sentence


def test_codes_may_stand_for_a_multiple_where_a_constant_is_added_to_it() -> None:
    """As `onnxq/ops/forms/hard_activations.py` writes a HardSigmoid."""
    constants = {"s": np.array(1, F), "t": np.array(2, F), "z": np.array(0, U8), "k": np.array(255, U8)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q t z", "a")]
    nodes += [node("DequantizeLinear", "k s z", "b"), node("Add", "a b", "y")]
    assert defects(unchecked(nodes, constants)) == []
    nodes[-1] = node("Add", "a x", "y")
    assert [d.node for d in defects(unchecked(nodes[:2] + nodes[3:], constants))] == ["n_a"]
    nodes[-1] = node("Sub", "a b", "y")
    assert [d.node for d in defects(unchecked(nodes, constants))] == ["n_a"]


def test_weights_and_biases_behind_dequantize_linear_are_fine() -> None:
    weights = {"w": np.ones((4, 3), I8), "b": np.ones(3, np.int32), "s": np.full(3, 0.1, F), "t": np.array(0.1, F)}
    nodes = [node("DequantizeLinear", "w s", "wf"), node("DequantizeLinear", "b t", "bf"), node("Gemm", "x wf bf", "y")]
    assert defects(build(nodes, {"x": [2, 4]}, ["y"], weights)) == []


def test_the_integer_operators() -> None:
    weights = {
        "s": np.array(0.1, F),
        "z": np.array(0, U8),
        "w": np.ones((3, 1, 1, 1), I8),
        "ws": np.array([0.1, 0, 0.1], F),
        "wz": np.zeros(2, I8),
    }
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearConv", "q s z w ws wz s z", "c"),
        node("DequantizeLinear", "c s z", "y"),
    ]
    sentences = [d.sentence for d in defects(unchecked(nodes, weights, shape=(1, 1, 2, 2)))]
    assert "QLinearConv 'n_c' has a scale 'ws'[1] that is zero: 0" in sentences
    assert "QLinearConv 'n_c' has a zero point 'wz' of shape [2] for a scale of shape [3]" in sentences


def test_the_operators_of_com_microsoft() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q", domain="com.microsoft"),
        node("QLinearSigmoid", "q s z bad z", "r", domain="com.microsoft"),
        node("DequantizeLinear", "r s z", "y", domain="com.microsoft"),
    ]
    weights = {"s": np.array(0.1, F), "bad": np.array(-1, F), "z": np.array(0, np.int16)}
    found = defects(unchecked(nodes, weights, opset=13, domains={"com.microsoft": 1}))
    assert [d.sentence for d in found] == ["com.microsoft.QLinearSigmoid 'n_r' has a scale 'bad' that is negative: -1"]
    (found_import, *_) = defects(unchecked(nodes, weights, opset=13))
    assert found_import.sentence == (
        "com.microsoft.QuantizeLinear 'n_q' is of the domain 'com.microsoft', whose version the model does not import"
    )


def test_bodies_and_functions_are_looked_into() -> None:
    weights = {"s": np.array(0, F), "z": np.array(0, U8)}
    inner = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")]
    body = graph(inner, {}, ["d"], weights)
    other = graph([node("Identity", "x", "e")], {}, ["e"], {})
    model = unchecked([node("If", "c", "y", then_branch=body, else_branch=other)], {"c": np.array(True)})
    assert defects(model)[0].sentence == "QuantizeLinear 'n_q' has a scale 's' that is zero: 0"
    imports = [helper.make_opsetid("", 21)]
    constants = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a)) for n, a in weights.items()]
    model = unchecked([node("Pair", "x", "y", domain="mine")], {}, domains={"mine": 1})
    model.functions.append(helper.make_function("mine", "Pair", ["x"], ["d"], [*constants, *inner], imports))
    assert "that is zero" in defects(model)[0].sentence


def test_scales_in_constant_nodes() -> None:
    nodes = [
        helper.make_node("Constant", [], ["s"], value_float=0.0),
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "y"),
    ]
    assert "has a scale 's' that is zero" in defects(unchecked(nodes, {"z": np.array(0, U8)}))[0].sentence


def test_external_data(tmp_path: Path) -> None:
    model = build([node("MatMul", "x w", "y")], {"x": [2, 64]}, ["y"], {"w": floats(64, 64)})
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert find_defects(load(path)) == []
    (tmp_path / "m.data").write_bytes(b"short")
    (found,) = find_defects(load(path))
    assert (found.tensor, found.is_error) == ("w", True)
    assert "needs bytes 0 to 16384" in found.sentence
    (tmp_path / "m.data").unlink()
    assert "which cannot be read" in find_defects(load(path))[0].sentence


def test_types_that_cannot_be_inferred_are_a_defect_only_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ModelError("the model: shape inference failed: ranks", "")

    monkeypatch.setattr("onnxq.verification.wellformed.check.infer_types", fail)
    assert defects(pair()) == [Defect("", "", "the model: shape inference failed: ranks")]
    assert [d.sentence for d in defects(pair(0.0)) if "inference" in d.sentence] == []


def test_no_weight_is_read_and_onnxruntime_is_not_imported(tmp_path: Path) -> None:
    weights = {"w": np.ones((2500, 10_000), I8), "s": np.array(0.1, F)}
    nodes = [node("DequantizeLinear", "w s", "wf"), node("MatMul", "x wf", "y")]
    path = tmp_path / "big.onnx"
    onnx.save(build(nodes, {"x": [2, 2500]}, ["y"], weights), path)
    model = load(path)
    started = time.perf_counter()
    assert find_defects(model) == []
    assert time.perf_counter() - started < 0.5
    late = "'onnxruntime' in sys.modules or 'onnx.checker' in sys.modules and 2"
    code = f"import sys, onnxq.verification.wellformed; sys.exit({late})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode in (
        0,
        2,
    )  # onnx itself imports its checker
