"""The evaluator: its schedule, taps at any depth, functions, refusals, and whole models against onnxruntime."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import peak_memory, run
from onnx import TensorProto, helper, parser

from onnxq import evaluate
from onnxq.errors import DataError, ModelError
from onnxq.evaluator import Evaluator
from onnxq.ir import parse

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
ARENA = Path(__file__).resolve().parents[3] / "shared/arena"
F = np.float32


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "custom": 1]>\n{text}')


LOOP = """
agraph (int64 trips, float[2] start) => (float[2] last, float[trips, 2] all) {
    yes = Constant <value = bool {1}> ()
    ten = Constant <value = float {10.0}> ()
    last, all = Loop (trips, yes, start) <body = turn
        (int64 i, bool c, float[2] state) => (bool on, float[2] next, float[2] shown) {
            on = Identity (c)
            early = Less (i, i)
            step = If (early) <
                then_branch = t () => (float low) { low = Neg (ten) },
                else_branch = e () => (float high) { high = Identity (ten) }
            >
            next = Add (state, step)
            shown = Mul (next, next)
        }>
}
"""


def test_outputs_come_in_the_order_asked_for_and_from_anywhere_in_the_main_graph():
    m = model("agraph (float[2] x) => (float[2] y) { a = Abs (x) b = Sqrt (a) y = Neg (b) }")
    x = F([4, -9])
    assert {k: v.tolist() for k, v in evaluate(m, {"x": x}).items()} == {"y": [-2, -3]}
    found = evaluate(m, {"x": x}, outputs=["b", "y", "x", "a"])
    assert {k: v.tolist() for k, v in found.items()} == {"b": [2, 3], "y": [-2, -3], "x": [4, -9], "a": [4, 9]}
    assert list(found) == ["b", "y", "x", "a"]


def test_taps_see_every_tensor_at_every_depth_and_each_turn_of_a_loop():
    seen: list[tuple[str, list[float] | float]] = []

    def note(name: str) -> Callable[[np.ndarray], None]:
        return lambda array: seen.append((name, array.tolist()))

    names = ("start", "ten", "state", "high", "low", "shown", "last")
    found = evaluate(model(LOOP), {"trips": np.array(2), "start": F([1, 2])}, taps={name: note(name) for name in names})
    assert found["last"].tolist() == [21, 22]
    assert found["all"].tolist() == [[121, 144], [441, 484]]
    assert seen == [
        ("ten", 10.0),
        ("start", [1, 2]),
        ("state", [1, 2]),
        ("high", 10.0),
        ("shown", [121, 144]),
        ("state", [11, 12]),
        ("high", 10.0),
        ("shown", [441, 484]),
        ("last", [21, 22]),
    ]


def test_a_value_taps_one_scope_where_a_name_taps_all():
    text = """
    agraph (bool c, float[1] x) => (float[1] y) {
        y = If (c) <
            then_branch = t () => (float[1] r) { r = Abs (x) },
            else_branch = e () => (float[1] r) { r = Neg (x) }
        >
    }"""
    m = parse(model(text).SerializeToString())
    branches = m.graph.nodes[0].bodies
    for taken in (True, False):
        by_name: list[float] = []
        by_value: list[float] = []
        feeds = {"c": np.array(taken), "x": F([-3])}
        evaluate(m, feeds, taps={"r": lambda r: by_name.append(float(r[0]))})  # noqa: B023
        evaluate(m, feeds, taps={branches["then_branch"][0].values["r"]: lambda r: by_value.append(float(r[0]))})  # noqa: B023
        assert by_name == [3]
        assert by_value == ([3] if taken else [])


def test_a_loop_that_never_turns_gives_an_empty_stack():
    found = evaluate(model(LOOP), {"trips": np.array(0), "start": F([1, 2])})
    assert found["last"].tolist() == [1, 2]
    assert found["all"].shape == (0, 2)
    assert found["all"].dtype == F


def test_dead_values_are_dropped_as_soon_as_nothing_reads_them():
    count = 30
    steps = "\n".join(f"v{i + 1} = Neg (v{i})" for i in range(count))
    m = model(f"agraph (float[N] v0) => (float y) {{ {steps} y = ReduceMax <keepdims = 0> (v{count}) }}")
    evaluator, x = Evaluator(m), np.ones(1_000_000, F)
    assert peak_memory(lambda: evaluator.run({"v0": x})) < 3 * x.nbytes  # an input and an output, not thirty


def test_peak_bytes_count_what_lives_at_the_same_time_besides_constants():
    body = "w = Constant <value = float[4] {1, 2, 3, 4}> () a = Add (x, w) b = Relu (a) c = Concat <axis = 0> (b, b)"
    evaluator = Evaluator(model(f"agraph (float[4] x) => (float[8] y) {{ {body} y = Neg (c) }}"))
    assert evaluator.peak_bytes({"x": np.ones(4, F)}) == 80  # x of 4 float32, c and y of 8


def test_peak_bytes_are_told_beforehand_where_all_sizes_are_known():
    body = "w = Constant <value = float[4] {1, 2, 3, 4}> () a = Add (x, w) b = Relu (a) c = Concat <axis = 0> (b, b)"
    evaluator = Evaluator(model(f"agraph (float[4] x) => (float[8] y) {{ {body} y = Neg (c) }}"))
    sizes = {"a": 16, "b": 16, "c": 32, "y": 32}
    assert evaluator.expected_peak_bytes({"x": np.ones(4, F)}, lambda value: sizes[value.name]) == 80
    assert evaluator.expected_peak_bytes({"x": np.ones(4, F)}, lambda value: None) is None


def test_one_evaluator_runs_any_number_of_times_with_other_shapes():
    evaluator = Evaluator(model("agraph (float[N] x) => (float[N] y) { y = Abs (x) }"))
    for size in (1, 3, 2):
        assert evaluator.run({"x": -np.ones(size, F)})["y"].tolist() == [1] * size


def test_only_what_the_outputs_asked_for_and_the_taps_need_is_run():
    m = model("agraph (float[1] x) => (float[1] y) { a = Abs (x) b = custom.Wobble (x) y = Neg (b) c = Neg (a) }")
    tapped: list[float] = []
    assert evaluate(m, {"x": F([2])}, outputs=["a"], taps={"c": lambda c: tapped.append(float(c[0]))})["a"] == [2]
    assert tapped == [-2]
    looped: list[list[float]] = []
    feeds = {"trips": np.array(2), "start": F([1, 2])}
    evaluate(model(LOOP), feeds, outputs=["ten"], taps={"state": lambda state: looped.append(state.tolist())})
    assert looped == [[1, 2], [11, 12]]


def test_an_initializer_that_is_an_input_can_be_fed():
    m = model("agraph (float[1] x, float[1] w) => (float[1] y) { y = Mul (x, w) }")
    m.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [3]))
    assert evaluate(m, {"x": F([2])})["y"].tolist() == [6]
    assert evaluate(m, {"x": F([2]), "w": F([5])})["y"].tolist() == [10]


def test_sparse_initializers_are_written_out():
    m = model("agraph (float[4] x) => (float[4] y, float[2, 2] z) { y = Add (x, s) z = Identity (t) }")
    values = helper.make_tensor("s", TensorProto.FLOAT, [2], [7, 8])
    m.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2], [1, 3]), [4])
    )
    values = helper.make_tensor("t", TensorProto.FLOAT, [1], [9])
    m.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, helper.make_tensor("j", TensorProto.INT64, [1, 2], [1, 0]), [2, 2])
    )
    found = evaluate(m, {"x": F([1, 1, 1, 1])})
    assert found["y"].tolist() == [1, 8, 1, 9]
    assert found["z"].tolist() == [[0, 0], [9, 0]]


def test_types_below_eight_bits_pass_through():
    four = helper.make_tensor("w", TensorProto.INT4, [3], [-8, 0, 7])
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [four, helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])],
    )
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert evaluate(m, {})["y"].tolist() == [-4, 0, 3.5]


def test_model_local_functions_are_inlined_and_keep_their_own_operator_set():
    m = model("agraph (float[2, 2, 2] x) => (float[2, 2, 2] y) { y = custom.soft <k = 2.0> (x) }")
    function = parser.parse_function(
        '<opset_import: ["": 17], domain: "custom"> soft <k> (x) => (y) '
        "{ c = Constant <value_float: float = @k> () m = Mul (x, c) y = Softmax (m) }"
    )
    m.functions.append(function)
    x = np.arange(8, dtype=F).reshape(2, 2, 2)
    y = evaluate(m, {"x": x})["y"]
    np.testing.assert_allclose(y[..., 1], np.full((2, 2), 1 / (1 + np.exp(-2))), rtol=1e-6)


def test_operators_without_a_kernel_run_in_onnx_reference():
    m = model("agraph (float[4, 2] x) => (float[N, 2] y, int64[N] i) { y, i = Unique <axis = 0, sorted = 1> (x) }")
    found = evaluate(m, {"x": F([[1, 2], [0, 1], [1, 2], [0, 1]])})
    assert found["y"].tolist() == [[0, 1], [1, 2]]
    assert found["i"].tolist() == [1, 0]


def test_sequences_go_through_bodies_and_through_onnx_reference():
    text = """
    agraph (seq(float[N]) s, float[1] one) => (seq(float[N]) r, float[N] first) {
        r = SequenceMap (s) <body = b (float[N] item) => (float[N] out) { out = Add (item, one) }>
        zero = Constant <value = int64 {0}> ()
        first = SequenceAt (r, zero)
    }"""
    seen: list[list[float]] = []
    feeds = {"s": [F([1, 2]), F([3])], "one": F([1])}
    found = evaluate(model(text), feeds, taps={"out": lambda out: seen.append(out.tolist())})
    assert [item.tolist() for item in found["r"]] == [[2, 3], [4]]
    assert found["first"].tolist() == [2, 3]
    assert seen == [[2, 3], [4]]
    assert evaluate(model(text), {**feeds, "s": []}, outputs=["r"]) == {"r": []}


def test_a_tap_inside_a_node_that_runs_elsewhere_is_refused():
    text = """
    agraph (float[1] x) => (float[1] y) {
        y = custom.Twice (x) <body = b (float[1] item) => (float[1] out) { out = Neg (item) }>
    }"""
    with pytest.raises(DataError, match=r"tensor 'out' cannot be tapped: .*Twice.* runs in onnx.reference"):
        evaluate(model(text), {"x": F([1])}, taps={"out": print})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' of the model is missing"),
        ({"x": F([1]), "z": F([1])}, "the model has no input 'z'"),
        ({"x": np.array([1.0])}, "input 'x' of the model is float32, not float64"),
        ({"x": [1.0]}, "input 'x' of the model is a tensor, not a list"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(feeds, message):
    with pytest.raises(DataError, match=message):
        evaluate(model("agraph (float[1] x) => (float[1] y) { y = Abs (x) }"), feeds)


def test_unknown_outputs_and_taps_are_refused():
    m = model("agraph (float[1] x) => (float[1] y) { y = Abs (x) }")
    with pytest.raises(DataError, match="no tensor 'q' in its main graph"):
        evaluate(m, {"x": F([1])}, outputs=["q"])
    with pytest.raises(DataError, match="no tensor 'q'"):
        evaluate(m, {"x": F([1])}, taps={"q": print})


def test_an_unknown_operator_is_refused_by_name():
    m = model("agraph (float[1] x) => (float[1] y) { y = custom.Wobble (x) }")
    with pytest.raises(ModelError, match=r"node Wobble of 'y' \(custom\.Wobble\): onnxq has no kernel for it"):
        evaluate(m, {"x": F([1])})


def test_an_error_inside_a_body_names_the_node_inside():
    text = """
    agraph (float[2] x, float[3] z) => (float[2] y) {
        yes = Constant <value = bool {1}> ()
        y = If (yes) <
            then_branch = t () => (float[2] r) { r = Add (x, z) },
            else_branch = e () => (float[2] q) { q = Identity (x) }
        >
    }"""
    with pytest.raises(ModelError, match=r"node Add of 'r' \(Add\): it failed: operands could not be"):
        evaluate(model(text), {"x": F([1, 2]), "z": F([1, 2, 3])})


def test_nodes_out_of_order_run_in_order():
    m = model("agraph (float[1] x) => (float[1] y) { a = Abs (x) y = Neg (a) }")
    m.graph.node.reverse()
    assert evaluate(m, {"x": F([-3])})["y"].tolist() == [-3]


def test_the_same_weights_at_an_odd_place_of_the_file_are_aligned(tmp_path):
    m = model("agraph (float[3] x) => (float[3] y) { y = Add (x, w) }")
    for shift in range(4):
        m.doc_string = "d" * shift
        m.graph.initializer.clear()
        m.graph.initializer.append(onnx.numpy_helper.from_array(F([1, 2, 3]), "w"))
        path = tmp_path / f"{shift}.onnx"
        onnx.save(m, path)
        evaluator = Evaluator(path)
        assert all(array.flags.aligned for array in evaluator._schedule.constants.values())
        assert evaluator.run({"x": F([0, 0, 0])})["y"].tolist() == [1, 2, 3]


# -- whole models ------------------------------------------------------------------------------------------


def against_onnxruntime(path: Path, feeds: dict[str, np.ndarray], tolerance: float) -> None:
    """Largest difference of each output, relative to its largest magnitude."""
    for ours, theirs in zip(Evaluator(path).run(feeds).values(), run(path, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert np.abs(ours.astype(np.float64) - theirs).max() <= tolerance * np.abs(theirs).max()


HEAVY = ("light_vgg19", "light_bvlc_alexnet", "light_zfnet512", "light_resnet50")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in HEAVY else [])
        for path in sorted(LIGHT.glob("*.onnx"))
    ],
)
def test_the_light_models_agree_with_onnxruntime(path):
    proto = onnx.load(path)
    weights = {w.name for w in proto.graph.initializer}
    feeds = {}
    for info in proto.graph.input:
        if info.name not in weights:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            count = int(np.prod(shape))  # the input that onnx's own runner gives these models
            feeds[info.name] = (np.arange(count).reshape(shape) / count).astype(F)
    against_onnxruntime(path, feeds, 1e-4)


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("chargpt", "chargpt", 2), ("digits_mbv2", "digits", 16), ("magika_v3_3", "magika", 2), ("minilm", "minilm", 2),
        ("super_resolution", "superres", 1), ("ultraface_rfb320", "face", 1),
    ],
)  # fmt: skip
def test_real_models_agree_with_onnxruntime(name, data, count):
    path, samples = ARENA / f"models/{name}.onnx", ARENA / f"data/{data}_eval.npz"
    if not (path.exists() and samples.exists()):
        pytest.skip("the models are not here")
    with np.load(samples) as arrays:
        feeds = {key: arrays[key][:count] for key in arrays.files if not key.startswith("_")}
    against_onnxruntime(path, feeds, 1e-4)
