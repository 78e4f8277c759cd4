"""`plan`, `verify`, `inspect` and `recipes`: commands that write nothing."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.evaluator import schedule
from onnxq.planning.recipe import recipe_names

STATIC = ("digits_cnn.onnx", "-d", "digits_calibration.npz")


@pytest.fixture
def quantized(digits_int8: Path, folder: Path) -> Path:
    return Path(shutil.copy(digits_int8, "q.onnx"))


def against(*options: object) -> tuple[object, ...]:
    return ("verify", "q.onnx", "--against", *STATIC, *options)


def save(path: str, nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], weights: dict[str, np.ndarray]) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_plan_has_a_line_for_every_node(cli, folder: Path) -> None:
    code, out, err = cli("plan", *STATIC)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "Conv_7 Conv static-int8 Q/DQ on input, weight and output, int32 bias" in lines
    assert "Relu_20 Relu float neighbours are float" in lines


def test_plan_of_a_model_that_stays_float_is_no_failure(cli, folder: Path) -> None:
    save("relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {})
    code, out, _ = cli("plan", "relu.onnx")
    assert code == 0
    assert "float" in out


def test_plan_says_why_a_pass_did_not_change_a_node(cli, folder: Path) -> None:
    code, out, err = cli("plan", "digits_cnn.onnx", "--why-not", "rms_norm_reciprocal", "Relu_20")
    assert (code, err) == (0, "")
    lines = " ".join(out.split())
    assert lines.startswith("rms_norm_reciprocal (simplify): Write the product with a reciprocal root mean square")
    reason = "it replaces an expression that ends in Mul, and none is behind this Relu"
    assert lines.endswith(f"Relu_20 (Relu): it does not change the node: {reason}")
    code, out, _ = cli("plan", "digits_cnn.onnx", "--why-not", "rms_norm_reciprocal", "Relu_20", "--format", "json")
    found = json.loads(out)
    assert (code, found["applies"], found["reason"]) == (0, False, reason)


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (("rms", "Relu_20"), "no pass is called 'rms'", ""),
        (("fold_pad", "Relu_2x"), "no node of digits_cnn.onnx is called 'Relu_2x'", "Did you mean 'Relu_2'"),
        (("fold_pad", "Relu_20", *STATIC[1:]), "--why-not makes no plan, and --data is for one", "Leave out --data"),
    ],
)
def test_a_question_about_a_pass_that_has_no_answer(cli, folder: Path, options, first: str, second: str) -> None:
    code, out, err = cli("plan", "digits_cnn.onnx", "--why-not", *options)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith(f"error: {first}")
    assert lines[1].startswith(f"hint: {second}")


def test_plan_of_an_empty_model(cli, folder: Path) -> None:
    graph = helper.make_graph([], "g", *[[helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])]] * 2)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "empty.onnx")
    assert cli("plan", "empty.onnx").code == 0
    assert cli("inspect", "empty.onnx").code == 0
    assert cli("quantize", "empty.onnx").code == 1


def test_verify_meets_thresholds(cli, quantized: Path) -> None:
    code, out, err = cli(*against("--min-sqnr", 20, "--max-abs", 5, "--min-agreement", 99))
    assert (code, err) == (0, "")
    assert "compared on 100 samples from digits_calibration.npz" in out


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--min-sqnr", 90, "dB below the 90 dB asked for"),
        ("--max-abs", 0.001, "above 0.001"),
    ],
)
def test_verify_says_which_threshold_was_missed_by_how_much(cli, quantized: Path, option, value, sentence) -> None:
    code, out, err = cli(*against(option, value))
    assert code == 1
    assert "output 'logits'" in err
    assert sentence in err
    assert "logits" in out  # the figures are shown all the same


def test_verify_in_json(cli, quantized: Path) -> None:
    code, out, _ = cli(*against("--min-sqnr", 90, "--format", "json"))
    result = json.loads(out)
    assert code == 1
    assert set(result) == {
        "schema",
        "model",
        "against",
        "passed",
        "missed",
        "comparison",
        "fusion",
        "saturation",
        "hazards",
        "families",
        "min_onnxruntime",
        "inputs",
        "warnings",
    }
    assert (result["passed"], len(result["missed"]), result["comparison"]["samples"]) == (False, 1, 100)


def test_a_model_equals_itself(cli, quantized: Path) -> None:
    code, out, _ = cli("verify", "q.onnx", "--against", "q.onnx", "--min-sqnr", 1e9, "--format", "json")
    (output,) = json.loads(out)["comparison"]["outputs"]
    assert (code, output["equal"], output["sqnr"], output["max_abs"]) == (0, True, None, 0)


def test_verify_with_random_numbers_says_so(cli, quantized: Path) -> None:
    out = cli("verify", "q.onnx", "--against", "digits_cnn.onnx").out
    assert "8 samples from random numbers" in out
    advice = "random numbers show that the model runs"
    assert advice in out
    Path("digits_calibration.npz").rename("random numbers.npz")
    named = cli("verify", "q.onnx", "--against", "digits_cnn.onnx", "-d", "random numbers.npz", "--samples", 4).out
    assert "samples from random numbers.npz" in named
    assert advice not in named


def test_verify_notices_another_origin(cli, quantized: Path, folder: Path) -> None:
    model = onnx.load("digits_cnn.onnx")
    model.doc_string = "another"
    onnx.save(model, "other.onnx")
    assert "made from another file than other.onnx" in cli("verify", "q.onnx", "--against", "other.onnx").err
    assert cli("verify", "q.onnx", "--against", "digits_cnn.onnx").err == ""


def test_verify_refuses_models_with_other_outputs(cli, folder: Path) -> None:
    save("relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {})
    save("both.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 5]}, {})
    assert "the quantized model has the inputs" in cli("verify", "relu.onnx", "--against", "digits_cnn.onnx").err
    result = cli("verify", "relu.onnx", "--against", "both.onnx")
    assert result.code == 1
    assert "input 'x' is tensor(float) [1, 4] in the quantized model" in result.err


def test_verify_alone(cli, quantized: Path) -> None:
    code, out, _ = cli("verify", "q.onnx")
    assert code == 0
    first, *rest = out.splitlines()
    assert first == "q.onnx is well formed, loads in onnxruntime and runs: 8 samples from random numbers (seed 0)"
    said = re.search(r"^  (\d+) of \1 nodes give the same in both engines on the same inputs", "\n".join(rest), re.M)
    assert said is not None
    asked = ("-d", "digits_calibration.npz", "--samples", 9, "--format", "json")
    result = json.loads(cli("verify", "q.onnx", *asked).out)
    assert (result["passed"], result["samples"], result["comparison"]) == (True, 9, None)
    engines = result["engines"]
    assert (engines["nodes"], engines["culprits"], engines["ties"]) == (int(said[1]), [], 0)
    assert engines["nodes"] > 20
    assert [output["name"] for output in engines["outputs"]] == ["logits"]


def test_verify_alone_names_the_node_on_which_the_engines_disagree(cli, folder: Path, monkeypatch) -> None:
    save("two.onnx", [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])], {"x": [1, 4]}, {})
    kernels = schedule.find_kernel
    wrong = lambda op_type, *rest: (lambda x: x * 2) if op_type == "Neg" else kernels(op_type, *rest)  # noqa: E731
    monkeypatch.setattr(schedule, "find_kernel", wrong)
    code, out, err = cli("verify", "two.onnx")
    assert code == 1
    assert "two.onnx: Neg node y differs in tensor 'y' by up to" in err
    assert "give --data, and report it if it is so there, too" in err
    assert "1 of 2 nodes give the same in both engines" in out
    result = json.loads(cli("verify", "two.onnx", "--format", "json").out)
    assert (result["passed"], result["engines"]["culprits"][0]["tensor"]) == (False, "y")
    assert len(result["missed"]) == 1


def test_verify_finds_a_scale_that_is_zero_and_notes_what_is_odd(cli, folder: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "t"], ["y"]),
    ]
    save("odd.onnx", nodes, {"x": [1, 4]}, {"s": np.array(1, np.float32), "t": np.array(2, np.float32)})
    code, _, err = cli("verify", "odd.onnx")
    assert code == 0
    assert "has another scale than QuantizeLinear" in err
    save("zero.onnx", nodes, {"x": [1, 4]}, {"s": np.array(0, np.float32), "t": np.array(2, np.float32)})
    code, _, err = cli("verify", "zero.onnx")
    assert code == 1
    assert "zero.onnx is not well formed: QuantizeLinear" in err
    assert "has a scale 's' that is zero" in err


def test_verify_alone_finds_what_is_not_finite(cli, folder: Path) -> None:
    nodes = [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["z", "z"], ["y"])]
    save("nan.onnx", nodes, {"x": [1, 64]}, {})
    result = cli("verify", "nan.onnx")
    assert result.code == 1
    assert "gives NaN or infinity in output 'y', sample 0, first behind Div node y (tensor 'y')" in result.err
    assert "The sample is random, and not every model takes random numbers. Pass --data" in result.err
    np.savez("x.npz", x=np.ones((1, 64), np.float32))
    result = cli("verify", "nan.onnx", "-d", "x.npz")
    assert result.code == 1
    assert "hint: Compare it with its float model: --against FLOAT." in result.err


def test_numbers_are_made_up_that_a_logarithm_takes(cli, folder: Path) -> None:
    save("log.onnx", [helper.make_node("Log", ["x"], ["y"])], {"x": [1, 64]}, {})
    assert cli("verify", "log.onnx").code == 0


def test_nan_of_the_float_model_is_not_blamed_on_the_other(cli, folder: Path) -> None:
    nodes = [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["x", "z"], ["y"])]
    save("nan.onnx", nodes, {"x": [1, 4]}, {})
    np.savez("x.npz", x=np.zeros((1, 4), np.float32))
    result = cli("verify", "nan.onnx", "--against", "nan.onnx", "-d", "x.npz", "--min-sqnr", "20")
    assert result.code == 1
    assert "'y' is NaN 4 of 4 times in the float model: left out here" in result.out
    assert "error: nan.onnx: output 'y' is NaN in the float model, every time" in result.err


def test_verify_finds_a_model_that_is_not_well_formed(cli, folder: Path) -> None:
    save("bad.onnx", [helper.make_node("Relu", ["x"], ["y"], alpha=1.0)], {"x": [1, 4]}, {})
    result = cli("verify", "bad.onnx")
    assert result.code == 1
    assert "bad.onnx is no valid ONNX model: Relu of 'y' has the attribute alpha" in result.err


def test_verify_finds_a_model_that_does_not_load(cli, folder: Path) -> None:
    save("odd.onnx", [helper.make_node("Nonsense", ["x"], ["y"], domain="acme")], {"x": [1, 4]}, {})
    model = onnx.load("odd.onnx")
    model.opset_import.add(domain="acme", version=1)
    onnx.save(model, "odd.onnx")
    result = cli("verify", "odd.onnx")
    assert result.code == 1
    assert "onnxruntime cannot load or run odd.onnx" in result.err
    assert "hint: Give the library of its custom operators with --custom-ops" in result.err


def test_inspect(cli, quantized: Path) -> None:
    facts = json.loads(cli("inspect", "digits_cnn.onnx", "--format", "json").out)
    assert facts["operators"]["Conv"] == 3
    assert facts["inputs"] == [{"name": "image", "type": "float32[batch, 1, 8, 8]"}]
    assert (facts["share_in_8_bits"], facts["nodes_quantized"], facts["made_by_onnxq"]) == (0, 0, {})
    model = onnx.load("digits_cnn.onnx")
    stored = [numpy_helper.to_array(t) for t in model.graph.initializer]
    stored += [numpy_helper.to_array(n.attribute[0].t) for n in model.graph.node if n.op_type == "Constant"]
    assert facts["weight_bytes"] == sum(array.nbytes for array in stored)
    after = json.loads(cli("inspect", "q.onnx", "--format", "json").out)
    assert after["share_in_8_bits"] > 0.9
    assert after["nodes_quantized"] >= 3
    assert after["made_by_onnxq"]["onnxq_version"]


def test_inspect_counts_what_onnxruntime_fuses(cli, folder: Path) -> None:
    def pair(name: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("QuantizeLinear", [name, "s", "z"], [f"{name}_q"]),
            helper.make_node("DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"]),
        ]

    nodes = [
        *pair("x"),
        helper.make_node("Relu", ["x_d"], ["r"]),  # float: nobody quantizes what it gives
        helper.make_node("Neg", ["r"], ["n"]),  # float: it reads floats
        *pair("n"),
        helper.make_node("Add", ["n_d", "f"], ["a"]),  # float: it reads a matrix of floats
        *pair("a"),
        helper.make_node("DequantizeLinear", ["w", "s"], ["w_d"]),
        helper.make_node("Concat", ["a_d", "n_d"], ["c"], axis=0),  # integers: between the two
        *pair("c"),
        helper.make_node("MatMul", ["c_d", "w_d"], ["m"]),  # integers, with a float output
        helper.make_node("MatMul", ["m", "w_d"], ["y"]),  # float: one side is
    ]
    weights = {"s": np.float32(0.1), "z": np.uint8(128), "w": np.ones((4, 4), np.int8)}
    weights["f"] = np.ones((1, 4), np.float32)
    save("qdq.onnx", nodes, {"x": [1, 4]}, {name: np.asarray(array) for name, array in weights.items()})
    facts = json.loads(cli("inspect", "qdq.onnx", "--format", "json").out)
    assert (facts["nodes"], facts["nodes_quantized"], facts["nodes_converting"]) == (15, 2, 9)
    assert facts["weights"] == {
        "int8": {"tensors": 1, "bytes": 16},
        "float32": {"tensors": 2, "bytes": 20},
        "uint8": {"tensors": 1, "bytes": 1},
    }
    assert facts["share_in_8_bits"] == pytest.approx(17 / 37, abs=1e-4)


def test_inspect_in_text(cli, quantized: Path) -> None:
    code, out, err = cli("inspect", "q.onnx")
    assert (code, err) == (0, "")
    assert "float32[batch, 1, 8, 8]" in out
    assert "% of the weight bytes are in 8 bits or fewer" in out
    assert "made by onnxq" in out


def test_inspect_counts_dynamic_forms(cli, folder: Path) -> None:
    assert cli("quantize", "digits_cnn.onnx", "-o", "d.onnx", "--recipe", "dynamic-int8").code == 0
    facts = json.loads(cli("inspect", "d.onnx", "--format", "json").out)
    assert facts["nodes_quantized"] == facts["operators"]["MatMulInteger"] == 2


def test_recipes(cli) -> None:
    code, out, err = cli("recipes")
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out for name in recipe_names())
    for name in recipe_names():
        assert tomllib.loads(cli("recipes", name).out)["name"] == name


@pytest.mark.parametrize("command", ["verify", "quantize", "plan"])
def test_external_data_that_is_missing(cli, folder: Path, command: str) -> None:
    save(
        "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 64]}, {"w": np.ones((64, 64), np.float32)}
    )
    onnx.save(onnx.load("m.onnx"), "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    Path("e.data").unlink()
    code, _, err = cli(command, "e.onnx")
    if command != "plan":  # which reads no weights
        assert code == (1 if command == "verify" else 2)  # that of a check that says no
        assert "tensor 'w' needs the file " in err
        assert "Put the file there: exporters write it together with the model." in err


def test_a_model_that_others_have_quantized_is_said_to_be_one(cli, folder: Path, quantized: Path) -> None:
    proto = onnx.load(quantized)
    del proto.metadata_props[:]
    onnx.save(proto, "theirs.onnx")
    code, _, err = cli("quantize", "theirs.onnx", "-o", "again.onnx")
    assert code == 1
    assert "no node of theirs.onnx can be quantized" in err
    assert "hint: It is quantized already (DequantizeLinear " in err
    assert "give the float model." in err


def test_inspect_counts_rows_looked_up_in_a_quantized_table(cli, folder: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("GatherBlockQuantized", ["codes", "i", "s"], ["x"], domain="com.microsoft", block_size=16),
            helper.make_node("MatMulNBits", ["x", "w", "t"], ["y"], domain="com.microsoft", K=16, N=2, block_size=16),
        ],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.zeros((3, 8), np.uint8), "codes"),
            numpy_helper.from_array(np.ones((3, 1), np.float32), "s"),
            numpy_helper.from_array(np.zeros((2, 1, 8), np.uint8), "w"),
            numpy_helper.from_array(np.ones(2, np.float32), "t"),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "blocks.onnx")
    facts = json.loads(cli("inspect", "blocks.onnx", "--format", "json").out)
    assert (facts["nodes_quantized"], facts["nodes_converting"]) == (2, 0)
