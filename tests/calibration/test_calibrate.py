"""One pass of the float model: every value that is asked for, measured exactly, the same on every processor."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from helpers import build, floats, node, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.stats import Extremes
from onnxq.data.samples import InputSpec, input_specs, wrap_samples
from onnxq.data.synthetic import random_samples
from onnxq.errors import DataError, ModelError
from onnxq.ir import Model, parse
from onnxq.ir.shape_inference.types import infer_types
from onnxq.runtime.session import reason

WEIGHT = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def make(nodes, inputs, outputs, **weights) -> Model:
    graph = helper.make_graph(
        [helper.make_node(op, i, o, name=f"{op.lower()}_{o[0]}", **attributes) for op, i, o, attributes in nodes],
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model


def small() -> Model:
    """A MatMul `h`, its Relu `r`, and the row means `y`."""
    return make(
        [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["r"], {}), ("ReduceMean", ["r"], ["y"], {"axes": [1]})],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 1])],
        w=WEIGHT,
    )


def values(model: Model, *names: str):
    return [model.graph.values[name] for name in names]


def data(*rows: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((n, 3)).astype(np.float32)} for n in rows]


def test_every_value_is_measured_inputs_and_outputs_too():
    model, samples = small(), data(1, 4, 2)
    stats = calibrate(model, values(model, "x", "h", "h", "r", "y"), samples)
    assert stats.names == ["h", "r", "x", "y"]
    assert stats.samples == 3
    x = np.concatenate([s["x"] for s in samples])
    h = x @ WEIGHT
    r = np.maximum(h, 0)
    for name, expected in {"x": x, "h": h, "r": r, "y": r.mean(1)}.items():
        assert stats[name].count == expected.size
        # The evaluator rounds sums to 18 bits: see `onnxq.evaluator.wide`
        assert stats[name].min == pytest.approx(expected.min(), rel=1e-5)
        assert stats[name].max == pytest.approx(expected.max(), rel=1e-5)
        assert stats[name].mean == pytest.approx(
            expected.mean(dtype=np.float64), abs=4e-6 * float(np.abs(expected).max())
        )
    assert stats["x"].max == float(x.max())
    assert stats["r"].histogram.zeros == np.count_nonzero(h <= 0)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 9))
def test_how_rows_are_batched_changes_no_range(sizes, seed):
    model = small()
    asked = values(model, "x", "h", "r")
    batches = data(*sizes, seed=seed)
    rows = [{"x": b["x"][i : i + 1]} for b in batches for i in range(len(b["x"]))]
    one, two = calibrate(model, asked, batches), calibrate(model, asked, rows[::-1])
    for value in asked:
        a, b = one[value.name], two[value.name]
        assert a.count == b.count
        assert a.min == pytest.approx(b.min, rel=1e-5, abs=1e-6)  # a row's product may depend on its batch's kernel
        assert a.max == pytest.approx(b.max, rel=1e-5, abs=1e-6)
    assert one["x"].histogram.counts.tolist() == two["x"].histogram.counts.tolist()


def test_progress_counts_up_to_the_total():
    model, seen = small(), []
    samples = wrap_samples(data(1, 1, 1), input_specs(model))
    calibrate(model, values(model, "h"), samples, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    seen.clear()
    calibrate(model, values(model, "h"), iter(data(1)), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, None), (1, None)]


def test_chosen_statistics_are_collected():
    model = small()
    stats = calibrate(model, values(model, "h", "r"), data(2), kinds=lambda name: (Extremes(),))
    assert [type(part) for part in stats["h"]] == [Extremes]


def test_a_model_whose_inputs_alone_are_asked_for_is_not_run():
    model = make([("NoSuchOp", ["x"], ["y"], {})], [("x", TensorProto.FLOAT, [2])], [("y", TensorProto.FLOAT, [2])])
    assert calibrate(model, values(model, "x"), [{"x": np.float32([1, 2])}])["x"].max == 2


def test_values_of_two_float_types():
    model = make(
        [("Cast", ["x"], ["h"], {"to": TensorProto.FLOAT16}), ("Relu", ["h"], ["y"], {})],
        [("x", TensorProto.FLOAT, [2])],
        [("y", TensorProto.FLOAT16, [2])],
    )
    stats = calibrate(model, values(model, "h", "y"), [{"x": np.float32([-1.5, 2.25])}])
    assert (stats["h"].min, stats["y"].min, stats["y"].max) == (-1.5, 0, 2.25)


# -- refusals ---------------------------------------------------------------------------------------------------


def test_not_finite_values_name_tensor_node_and_sample():
    model = make(
        [("Sqrt", ["x"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("x", TensorProto.FLOAT, [2])],
        [("y", TensorProto.FLOAT, [2])],
    )
    samples = [{"x": np.float32([1, 4])}, {"x": np.float32([1, -4])}]
    with pytest.raises(DataError, match=r"tensor 'h' holds NaN \(after Sqrt node sqrt_h, sample 1\)"):
        calibrate(model, values(model, "h"), samples)


def test_samples_that_do_not_fit_name_sample_and_input():
    model = small()
    asked = values(model, "h")
    good = data(1)[0]
    for bad, words in {
        "missing": ({}, "sample 1 has no array for input 'x'"),
        "dtype": ({"x": np.zeros((1, 3), np.int64)}, "input 'x' takes float32, sample 1 gives int64"),
        "rank": ({"x": np.zeros(3, np.float32)}, "input 'x' has rank 2 .*, sample 1 gives rank 1"),
        "size": ({"x": np.zeros((1, 4), np.float32)}, "input 'x' has 3 in dimension 1 .*, sample 1 gives 4"),
        "NaN": ({"x": np.float32([[1, np.nan, 0]])}, r"input 'x' holds NaN at \[0, 1\] in sample 1"),
    }.values():
        with pytest.raises(DataError, match=words):
            calibrate(model, asked, [good, bad])
    for none in ([], wrap_samples([], input_specs(model))):
        with pytest.raises(DataError, match=r"there are no samples|samples holds none"):
            calibrate(model, asked, none)


def test_what_onnxruntime_refuses_is_told_in_one_line_and_nothing_is_printed(capfd):
    model = make(
        [("Add", ["a", "b"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
        [("a", TensorProto.FLOAT, ["n"]), ("b", TensorProto.FLOAT, ["m"])],
        [("y", TensorProto.FLOAT, ["k"])],
    )
    with pytest.raises(DataError) as caught:
        calibrate(model, values(model, "h"), [{"a": np.zeros(3, np.float32), "b": np.zeros(4, np.float32)}])
    message = caught.value.message
    assert "cannot run the model on sample 0, input 'a' float32[3], 'b' float32[4]: Add node 'add_h': " in message
    assert "\n" not in message
    assert "onnxruntime_src" not in message
    broken = make([("NoSuchOp", ["x"], ["y"], {})], [("x", TensorProto.FLOAT, [2])], [("y", TensorProto.FLOAT, [2])])
    with pytest.raises(ModelError, match=r"onnxruntime cannot load the model: .*NoSuchOp"):
        calibrate(broken, values(broken, "y"), [{"x": np.float32([1, 2])}])
    assert capfd.readouterr() == ("", "")


def test_values_that_have_no_range_are_the_callers_mistake():
    model = make(
        [("Shape", ["x"], ["s"], {}), ("Relu", ["x"], ["y"], {}), ("Add", ["y", "w"], ["z"], {})],
        [("x", TensorProto.FLOAT, [2])],
        [("z", TensorProto.FLOAT, [2]), ("s", TensorProto.INT64, [1])],
        w=np.float32([1, 2]),
    )
    sample = [{"x": np.float32([1, 2])}]
    with pytest.raises(ValueError, match="'w' is an initializer"):
        calibrate(model, values(model, "w"), sample)
    with pytest.raises(ValueError, match="'s' is int64"):
        calibrate(model, values(model, "s"), sample)


def test_values_inside_a_body_are_measured_where_it_runs():
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
    )
    model = make(
        [("If", ["c"], ["y"], {"then_branch": body, "else_branch": body})],
        [("x", TensorProto.FLOAT, [2]), ("c", TensorProto.BOOL, [])],
        [("y", TensorProto.FLOAT, [2])],
    )
    inner = model.graph.nodes[0].bodies["then_branch"][0].values["inner"]
    stats = calibrate(model, [inner], [{"x": np.float32([1, -2]), "c": np.True_}])
    assert (stats["inner"].min, stats["inner"].max, stats["inner"].count) == (0, 1, 2)
    assert "inner" not in calibrate(model, [inner], [{"x": np.float32([1, -2]), "c": np.False_}])


def test_a_reason_is_cut_to_what_a_user_can_read():
    raw = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. Name:'/a/Add' Status "
        "Message: /onnxruntime_src/onnxruntime/core/providers/cpu/math/element_wise_ops.h:563 void "
        "onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest was false. "
        "Attempting to broadcast an axis by a dimension other than 1. 4 by 5\n"
    )
    assert reason(RuntimeError(raw)) == "Add node '/a/Add': its inputs have 4 and 5 in one dimension"
    assert reason(RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : parsing failed.")) == "parsing failed."
    assert reason(RuntimeError()) == "RuntimeError"


def test_inputs_that_have_an_initializer_are_not_asked_for():
    model = make(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3]), ("w", TensorProto.FLOAT, [3, 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        w=WEIGHT,
    )
    assert input_specs(model) == [InputSpec("x", TensorProto.FLOAT, ("n", 3))]
    assert calibrate(model, values(model, "y"), random_samples(input_specs(model), 2)).samples == 2


def test_statistics_are_the_same_whatever_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"k": floats(8, 4, 3, 3), "w": floats(8, 8, 1, 1, seed=1)}
    steps = [node("Conv", "x k", "c", pads=[1] * 4), node("Relu", "c", "r"), node("Conv", "r w", "y")]
    model = typed(build(steps, {"x": [1, 4, 16, 16]}, ["y"], weights))
    values = [value for value in model.graph.values.values() if value.tensor is None]
    found = []
    for processors in (1, 5):
        monkeypatch.setattr(os, "cpu_count", lambda processors=processors: processors)
        found.append(calibrate(model, values, [{"x": floats(1, 4, 16, 16, seed=seed)} for seed in range(3)]))
    assert list(found[0].tensors) == list(found[1].tensors) == ["x", "y", "r", "c"]
    for name in found[0].names:
        one, other = (stats[name].histogram.arrays() for stats in found)
        assert all(np.array_equal(one[key], other[key]) for key in one)
