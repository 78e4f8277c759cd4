"""What passes answer when they are asked why they did not change a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, quantize_in_memory

from onnxq.errors import ModelError, RecipeError
from onnxq.explanation.why_not import PassAnswer, why_not
from onnxq.planning.recipe import load_recipe, parse_recipe

WEIGHTS = {"two": np.float32(2), "eps": np.float32(1e-5), "slope": floats(4, 1, 1)}
RMS = [
    node("Pow", "x two", "p"),
    node("ReduceMean", "p", "m", axes=[-1]),
    node("Add", "m eps", "a"),
    node("Sqrt", "a", "r"),
    node("Reciprocal", "r", "q"),
    node("Mul", "x q", "y"),
]


def model(nodes, shape=(2, 4), **weights) -> onnx.ModelProto:
    used = {name for each in nodes for name in each.input}
    known = {name: array for name, array in {**WEIGHTS, **weights}.items() if name in used}
    return build(nodes, {"x": [*shape]}, ["y"], known, 17)


@pytest.fixture
def ask(tmp_path: Path):
    """Ask about a node of a model."""

    def answer(proto, name: str, about: str, recipe="auto") -> PassAnswer:
        path = tmp_path / "model.onnx"
        onnx.save(proto, path)
        return why_not(path, name, about, recipe)

    return answer


@pytest.mark.parametrize("about", ["n_y", "y", "n_q"])
def test_a_node_that_is_changed_or_goes_with_the_change(ask, about: str) -> None:
    found = ask(model(RMS), "rms_norm_reciprocal", about)
    assert (found.applies, found.reason) == (True, "")
    assert (found.phase, found.node) == ("simplify", about)
    assert found.summary.startswith("Write the product with a reciprocal root mean square")


def test_the_reason_of_a_pattern(ask) -> None:
    proto = model([*RMS[:4], node("Abs", "r", "q"), RMS[5]])
    found = ask(proto, "rms_norm_reciprocal", "n_y")
    assert (found.applies, found.operator) == (False, "Mul")
    assert found.reason == "input 1 of Mul 'n_y' is made by Abs 'n_q', not by Reciprocal"
    inner = ask(proto, "rms_norm_reciprocal", "n_r")
    assert inner.reason == f"it replaces an expression that ends in Mul; of 'n_y': {found.reason}"
    none = ask(model([node("Abs", "x", "y")]), "rms_norm_reciprocal", "n_y")
    assert none.reason == "it replaces an expression that ends in Mul, and none is behind this Abs"


def test_the_reason_of_what_builds_the_replacement(ask) -> None:
    found = ask(model([node("Softmax", "x", "y")], (3, 2)), "binary_softmax_to_sigmoid", "y")
    assert found.reason == "it has fewer than 512 rows"
    found = ask(model([node("PRelu", "x slope", "y")], (2, 4, 3, 3)), "prelu_to_leaky_relu", "y")
    assert found.reason == "'slope' has 4 elements, not 1"


def test_other_passes_say_whether_they_change_the_node(ask) -> None:
    proto = model([node("Add", "x zero", "a"), node("Abs", "a", "y")], zero=np.float32(0))
    assert ask(proto, "eliminate_no_ops", "n_a").applies
    found = ask(proto, "eliminate_no_ops", "n_y")
    assert found.reason == "it finds nothing to change at Abs 'n_y', and gives no closer reason"


def test_a_pass_that_changes_the_model_itself(ask) -> None:
    proto = model([node("Neg", "x", "a", name="same"), node("Abs", "a", "y", name="same")])
    assert ask(proto, "unique_node_names", "y").applies
    found = ask(proto, "unique_node_names", "a")
    assert (found.applies, found.phase) == (False, "normalise")


def test_a_node_that_another_pass_took_in_before(ask) -> None:
    nodes = [node("Add", "x zero", "a"), node("PRelu", "a one", "y")]
    found = ask(model(nodes, zero=np.float32(0), one=np.float32([0.25])), "prelu_to_leaky_relu", "n_a")
    assert found.operator == "Add"
    reason = "the pass eliminate_no_ops took it in, or what it is part of"
    assert found.reason == f"the node is gone before it runs: {reason}"
    folded = model([node("Neg", "two", "c"), node("Mul", "x c", "y")])
    assert "folded 1 operator on constants" in ask(folded, "rms_norm_reciprocal", "n_c").reason


def test_what_keeps_a_pass_from_running_at_all(ask) -> None:
    off = parse_recipe('name = "mine"\nsimplify = false', "r")
    rms = model(RMS)
    assert ask(rms, "rms_norm_reciprocal", "n_y", off).reason == "the recipe mine says that models are not simplified"
    qnn = load_recipe("auto").for_target("qnn")
    assert ask(rms, "rms_norm_reciprocal", "n_y", qnn).reason == "models for qnn are not simplified"
    found = ask(rms, "gemm_to_matmul", "n_y", load_recipe("weight-int8"))
    assert found.reason == "it pays only where products compute in 8 bit"
    plain = model([node("Abs", "x", "y")])
    assert ask(plain, "cast_like_to_cast", "y").reason == "the model has no CastLike"
    plain.graph.node.append(onnx.helper.make_node("Unknown", ["y"], ["z"], domain="not.here"))
    plain.opset_import.append(onnx.helper.make_opsetid("not.here", 1))
    assert ask(plain, "eliminate_no_ops", "y").reason.startswith("the model cannot be run because of ")


def test_passes_over_quantized_models_are_asked_about_these(ask) -> None:
    nodes = [node("Conv", "x w", "c", name="conv", pads=[1] * 4), node("Relu", "c", "y")]
    proto = model(nodes, (1, 16, 32, 32), w=floats(32, 16, 3, 3))
    with pytest.raises(
        ModelError, match=r"the pass share_dequantize works on quantized models, and .* is float"
    ) as caught:
        ask(proto, "share_dequantize", "conv")
    assert "onnxq plan OUTPUT --why-not share_dequantize NODE" in caught.value.hint
    made = quantize_in_memory(proto, "static-int8", [{"x": floats(1, 16, 32, 32)}])
    quantized = onnx.ModelProto.FromString(made.data)
    found = ask(quantized, "share_dequantize", "conv")
    assert (found.phase, found.applies) == ("optimize", False)
    qnn = load_recipe("auto").for_target("qnn")
    assert ask(quantized, "fold_taps", "conv", qnn).reason == "it follows kernel times, and none are known of qnn"
    assert ask(quantized, "prelu", "conv").reason == "the model has no PRelu"


def test_unknown_names(ask) -> None:
    with pytest.raises(RecipeError, match="no pass is called 'rms_norm'") as caught:
        ask(model(RMS), "rms_norm", "n_y")
    assert "Did you mean 'rms_norm_reciprocal'" in caught.value.hint
    assert "simplify: decompose_ort_fusions, " in caught.value.hint
    with pytest.raises(ModelError, match=r"no node of .*model\.onnx is called 'n_z' or makes a tensor") as lost:
        ask(model(RMS), "rms_norm_reciprocal", "n_z")
    assert "Did you mean" in lost.value.hint


def test_models_whose_weights_alone_hold_codes_are_quantized(ask) -> None:
    codes = {"w": np.ones((4, 4), np.int8), "i": np.array([1, 2])}
    rows = [node("Gather", "w i", "r"), node("Cast", "r", "f", to=1), node("Mul", "x f", "y")]
    assert ask(model(rows, **codes), "redundant_clip", "y").reason
    proto = model([node("Abs", "x", "y")], (1, 16))
    blocks = {"c": np.zeros((2, 1, 8), np.uint8), "s": np.ones(2, np.float32)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in blocks.items())
    product = node("MatMulNBits", "y c s", "z", domain="com.microsoft", K=16, N=2, block_size=16)
    proto.graph.node.append(product)
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert ask(proto, "redundant_clip", "z").reason
