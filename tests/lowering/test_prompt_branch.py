"""Products of many rows in float, of few in 8 bits."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import genai_decoder, genai_samples
from helpers import floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq.api.verify import verify
from onnxq.ir import encode_proto, load, parse
from onnxq.lowering import prompt_branch
from onnxq.lowering.prompt_branch import with_prompt_branch, without_prompt_branch
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.search.budget import Budget

ROWS, K, N = 6, 64, 48


def product(
    *rows: int | str, level: int = 4, block: int = 32, bits: int = 4, zeros: bool = False, opset: int = 17
) -> onnx.ModelProto:
    """A MatMulNBits behind an Add, for rows of such axes."""
    rng = np.random.default_rng(0)
    stored = {
        "one": np.ones(K, np.float32),
        "w": rng.integers(0, 256, (N, K // block, block * bits // 8), dtype=np.uint8),
        "s": rng.random((N, K // block), dtype=np.float32),
    }
    if zeros:
        stored["z"] = rng.integers(0, 256, (N, K * bits // block // 8), dtype=np.uint8)
    settings = {"K": K, "N": N, "bits": bits, "block_size": block, "accuracy_level": level}
    nodes = [
        node("Add", "x one", "a", name="add"),
        helper.make_node("MatMulNBits", ["a", *list(stored)[1:]], ["y"], "product", domain="com.microsoft", **settings),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [*rows, n]) for name, n in (("x", K), ("y", N))]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model, x):
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(prompt_branch, "MOST_ADDED", 1e9)


@pytest.mark.parametrize("rows", [("batch", "length"), (2, "length"), ("length",)])
def test_few_rows_are_as_before_and_many_are_in_float(rows) -> None:
    proto, exact = product(*rows), product(*rows, level=1)
    made = with_prompt_branch(parse(encode_proto(proto)), ROWS)
    encoded = made.serialize()
    onnx.checker.check_model(onnx.load_from_string(encoded))
    for length in (1, 3, 4, 9):
        shape = {"batch": 2, "length": length}
        x = floats(*(shape.get(size, size) for size in rows), K, seed=1)
        expected = exact if x.size // K > ROWS else proto
        assert np.array_equal(run(encoded, x), run(expected.SerializeToString(), x)), length
    assert sum(tensor.name == "w" for tensor in onnx.load_from_string(encoded).graph.initializer) == 1


def test_fixed_rows_need_no_branch() -> None:
    made = with_prompt_branch(parse(encode_proto(product(2, 4))), ROWS)
    assert [(one.op_type, one.attribute("accuracy_level")) for one in made.graph.nodes][1:] == [("MatMulNBits", 1)]
    few = parse(encode_proto(product(2, 3)))
    assert with_prompt_branch(few, ROWS) is few


def in_float(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The same product of 8-bit weights, in float64."""
    stored = {tensor.name: numpy_helper.to_array(tensor).astype(float) for tensor in proto.graph.initializer}
    weight = (stored["w"] - stored["z"][..., None]) * stored["s"][..., None]
    return (x.astype(float) + stored["one"]) @ weight.reshape(N, K).T


@pytest.mark.parametrize("rows", [("batch", "length"), (2, "length"), (3, 4)])
def test_many_rows_of_8_bit_weights_are_in_float_of_weights_that_are_stored_once(rows) -> None:
    proto = product(*rows, bits=8, zeros=True)
    made = with_prompt_branch(parse(encode_proto(proto)), ROWS)
    encoded = made.serialize()
    onnx.checker.check_model(onnx.load_from_string(encoded))
    for length in (1, 3, 4, 9) if "length" in rows else (4,):
        sizes = {"batch": 2, "length": length}
        x = floats(*(sizes.get(size, size) for size in rows), K, seed=1)
        if x.size // K > ROWS:
            exact = in_float(proto, x)
            assert np.abs(run(encoded, x) - exact).max() < 1e-5 * np.abs(exact).max(), length
        else:
            assert np.array_equal(run(encoded, x), run(proto.SerializeToString(), x)), length
    assert [tensor.name for tensor in onnx.load_from_string(encoded).graph.initializer].count("w") == 1
    back = onnx.load_from_string(without_prompt_branch(made).serialize())
    assert "length" not in rows or [tensor.name for tensor in back.graph.initializer] == ["one", "w", "s", "z"]


@pytest.mark.parametrize(
    "how", [{}, {"zeros": True, "opset": 12}, {"zeros": True, "level": 1}, {"zeros": True, "block": 16, "most": 1}]
)
def test_8_bit_weights_that_do_not_unpack_well_stay(how, monkeypatch) -> None:
    how = dict(how)
    monkeypatch.setattr(prompt_branch, "MOST_UNPACKED", how.pop("most", 1 << 30))
    model = parse(encode_proto(product("n", bits=8, **how)))
    assert with_prompt_branch(model, ROWS) is model


@pytest.mark.parametrize("proto", [product("n", level=0), product("n", block=64, level=1), product(None, 3)])
def test_what_gains_nothing_stays(proto) -> None:
    model = parse(encode_proto(proto))
    assert with_prompt_branch(model, ROWS) is model


def test_some_targets_are_faster_in_codes_and_small_files_have_no_room(monkeypatch) -> None:
    model = parse(encode_proto(product("n")))
    assert with_prompt_branch(model, 0) is model
    monkeypatch.setattr(prompt_branch, "MOST_ADDED", 0.01)
    assert with_prompt_branch(model, ROWS) is model


@pytest.mark.parametrize("taken", ["a_token", "a_prompt", "y_token"])
def test_names_of_the_branches_are_those_of_nothing_else(taken) -> None:
    proto = product("n")
    proto.graph.node[0].input[1] = taken
    proto.graph.initializer[0].name = taken
    model = parse(encode_proto(proto))
    assert with_prompt_branch(model, ROWS) is model


def test_the_branch_can_be_taken_away() -> None:
    model = parse(encode_proto(product("n")))
    made = with_prompt_branch(model, ROWS)
    back = without_prompt_branch(made)
    assert onnx.load_from_string(back.serialize()).graph.node == onnx.load_from_string(model.serialize()).graph.node
    names = [tensor.name for tensor in onnx.load_from_string(back.serialize()).graph.initializer]
    assert names == ["one", "w", "s"]
    assert without_prompt_branch(model) is model


def test_an_output_that_no_node_makes_stays_outside_of_the_branch() -> None:
    proto = product("n")
    given_back = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n"])
    proto.graph.input.append(given_back)
    proto.graph.output.insert(0, given_back)
    made = with_prompt_branch(parse(encode_proto(proto)), ROWS)
    feeds = {"x": floats(9, K), "z": floats(9, seed=1)}
    found = ort.InferenceSession(made.serialize(), providers=["CPUExecutionProvider"]).run(None, feeds)
    assert found[0].tolist() == feeds["z"].tolist()
    assert np.array_equal(found[1], run(product("n", level=1).SerializeToString(), feeds["x"]))
    assert [value.name for value in without_prompt_branch(made).graph.outputs] == ["z", "y"]


@pytest.mark.parametrize("coded", ["float", "int8"])
def test_a_decoder_is_written_and_verified_with_its_branch(tmp_path, coded) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(genai_decoder(1), source)
    given = genai_samples(genai_decoder(1), 6, length=12)
    made = {"samples": given, "output": output, "target": "cpu-vnni", "kv_cache": coded, "force": True}
    quantize(source, in_blocks(4), **made)
    model = load(output)
    assert [one.op_type for one in model.graph.nodes][-1] == "If"
    assert [value.name for value in model.graph.outputs] == [value.name for value in load(source).graph.outputs]
    found = verify(output, source, samples=given, layers=True)
    assert found.comparison.worst_sqnr > 15
    assert found.comparison.layers
    whole = output.stat().st_size
    report = quantize(source, in_blocks(4), budget=Budget(max_size=whole - 100), **made)
    assert [one.op_type for one in load(output).graph.nodes][-1] != "If"
    assert report.comparison.worst_sqnr > 15
