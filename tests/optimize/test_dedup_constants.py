"""Constants that are equal are stored once, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import NONE, build, changed_alike, floats, node, typed
from onnx import TensorProto, helper, numpy_helper

from onnxq.optimize.dedup_constants import LEAST, merge_equal
from onnxq.pipeline.quantize import quantize

TABLE = floats(32, 32, seed=1)
assert TABLE.nbytes == LEAST


def model(**tables: np.ndarray) -> onnx.ModelProto:
    nodes = [node("Add", f"{before} {name}", name.upper()) for before, name in zip("xABC", tables, strict=False)]
    return build(nodes, {"x": [32, 32]}, [nodes[-1].output[0]], tables, 17)


def merged(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    return changed_alike(proto, merge_equal, {"x": floats(32, 32, seed=2)}, levels=(NONE,))


def test_equal_ones_are_stored_once() -> None:
    made, count = merged(model(a=TABLE, b=floats(32, 32, seed=3), c=TABLE.copy()))
    assert count == 1
    assert [tensor.name for tensor in made.graph.initializer] == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [TABLE.reshape(1, 32, 32), -TABLE, np.where(TABLE[0, 0] == TABLE, np.float32(np.nan), TABLE)],
    ids=["another shape", "other numbers", "not a number"],
)
def test_others_stay(other: np.ndarray) -> None:
    assert merge_equal(typed(model(a=TABLE, b=other))) == 0


def test_minus_zero_is_another_number() -> None:
    zeros = np.zeros((32, 32), np.float32)
    assert merge_equal(typed(model(a=zeros, b=-zeros))) == 0


def test_small_ones_inputs_and_outputs_stay() -> None:
    row = TABLE[:1]
    assert merge_equal(typed(model(a=row, b=row.copy()))) == 0
    proto = model(a=TABLE, b=TABLE.copy())
    proto.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [32, 32]))
    assert merge_equal(typed(proto)) == 0
    proto = model(a=TABLE, b=TABLE.copy())
    proto.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [32, 32]))
    assert merge_equal(typed(proto)) == 0


def test_bodies_read_the_first_one_too() -> None:
    inner = helper.make_graph(
        [node("Add", "x b", "i")], "then", [], [helper.make_tensor_value_info("i", TensorProto.FLOAT, [32, 32])]
    )
    other = helper.make_graph(
        [node("Sub", "x a", "j")], "else", [], [helper.make_tensor_value_info("j", TensorProto.FLOAT, [32, 32])]
    )
    arrays = {"a": TABLE, "b": TABLE.copy(), "yes": np.array(True)}
    proto = build([node("If", "yes", "y", then_branch=inner, else_branch=other)], {"x": [32, 32]}, ["y"], arrays)
    made, count = merged(proto)
    assert count == 1
    assert sum(len(tensor.raw_data) == LEAST for tensor in made.graph.initializer) == 1


def test_what_several_bodies_have_goes_to_the_graph_around_them() -> None:
    def body(name: str, operator: str) -> onnx.GraphProto:
        made = [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [32, 32])]
        table = numpy_helper.from_array(TABLE, f"{name}_t")
        return helper.make_graph([node(operator, f"x {name}_t", f"{name}_y")], name, [], made, [table])

    inner = helper.make_node("If", ["yes"], ["z"], then_branch=body("a", "Add"), else_branch=body("b", "Sub"))
    made = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [32, 32])]
    outer = helper.make_graph([inner], "outer", [], made)
    nodes = [node("If", "yes", "y", then_branch=outer, else_branch=body("c", "Mul"))]
    arrays = {"yes": np.array(True)}
    found, count = merged(build(nodes, {"x": [32, 32]}, ["y"], arrays))
    assert count == 2
    assert [tensor.name for tensor in found.graph.initializer if len(tensor.raw_data) == LEAST] == ["c_t_1"]


def test_a_quantized_model_stores_what_is_equal_once(tmp_path) -> None:
    weights = {"w": floats(64, 64, seed=4), "v": floats(64, 64, seed=4)}
    onnx.save(
        build([node("MatMul", "x w", "h"), node("MatMul", "h v", "y")], {"x": [4, 64]}, ["y"], weights),
        tmp_path / "m.onnx",
    )
    report = quantize(tmp_path / "m.onnx", "weight-int8")
    tensors = onnx.load(report.output).graph.initializer
    assert [tensor.data_type for tensor in tensors].count(TensorProto.INT8) == 1
