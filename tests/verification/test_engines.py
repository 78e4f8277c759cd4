"""Two engines on one model: what agrees, which node is named where something does not, and what cannot be checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import F, build, floats, node, quantize_in_memory
from onnx import TensorProto, helper

import onnxq
from onnxq.errors import CheckFailed, DataError, InvalidResult, ModelError
from onnxq.evaluator import Evaluator, schedule
from onnxq.ops.kernels.registry import find_kernel
from onnxq.verification.engines import EngineCheck, check_engines
from onnxq.verification.engines.tensors import InnerTensors
from onnxq.verification.engines.tolerance import gap

SAMPLES = Path(__file__).parents[2] / "sample_models"


def eighths(*shape: int, seed: int) -> np.ndarray:
    """Return numbers whose sums of products are exact, in any order."""
    return np.asarray(np.rint(floats(*shape, seed=seed) * 8) / 8, F)


FEEDS = [{"x": eighths(3, 8, seed=seed)} for seed in range(3)]


def perceptron() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    return build(nodes, {"x": [3, 8]}, ["y"], {"w": eighths(8, 16, seed=5), "v": eighths(16, 4, seed=6)})


def check(proto: onnx.ModelProto, samples: Any = FEEDS, **options: Any) -> EngineCheck:
    return check_engines(proto.SerializeToString(), samples, **options)


def mutate(monkeypatch: pytest.MonkeyPatch, operator: str, wrong: Callable[..., Any]) -> None:
    """Give the evaluator a wrong kernel."""

    def find(op_type: str, domain: str, opset: int) -> Any:
        kernel = find_kernel(op_type, domain, opset)
        if op_type != operator or kernel is None:
            return kernel
        return lambda *inputs, **attributes: wrong(kernel(*inputs, **attributes))

    monkeypatch.setattr(schedule, "find_kernel", find)


def test_engines_agree_on_a_sound_model() -> None:
    found = check(perceptron())
    assert (found.samples, found.nodes, found.culprits, found.parting, found.objection) == (3, 3, (), None, "")
    (output,) = found.outputs
    assert (output.name, output.dtype, output.elements) == ("y", "float32", 36)
    assert output.relative < 1e-5
    assert found.optimised[0].relative < 1e-5


@pytest.mark.parametrize("operator", ["MatMul", "Relu"])
def test_a_wrong_kernel_is_named_and_those_behind_it_are_not(monkeypatch: pytest.MonkeyPatch, operator: str) -> None:
    mutate(monkeypatch, operator, lambda y: y * F(1.001))
    found = check(perceptron())
    wrong = ["n_h", "n_y"] if operator == "MatMul" else ["n_r"]
    assert [culprit.node for culprit in found.culprits] == wrong
    assert found.culprits[0].sentence.startswith(
        f"{operator} node {wrong[0]} differs in tensor '{wrong[0][2:]}' by up to"
    )
    assert found.objection.startswith(found.culprits[0].sentence)
    assert found.parting is not None
    assert (found.parting.node, found.parting.is_step) == (wrong[0], False)


def test_a_difference_below_the_tolerance_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, "Relu", lambda y: y * F(1 + 5e-5))
    assert check(perceptron()).objection == ""


def test_a_node_that_is_wrong_on_a_later_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, "Relu", lambda y: y + F(1) if y[0, 0] == FEEDS_RELU[2] else y)
    found = check(perceptron())
    assert [(culprit.node, culprit.sample) for culprit in found.culprits] == [("n_r", 2)]


FEEDS_RELU = [np.maximum(feeds["x"] @ eighths(8, 16, seed=5), 0)[0, 0] for feeds in FEEDS]


def test_codes_that_round_the_other_way_are_counted_and_wrong_ones_are_not_ties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = {"s": np.array(0.02, F), "z": np.array(128, np.uint8)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    model = build(nodes, {"x": [20, 50]}, ["y"], weights)
    feeds = [{"x": floats(20, 50)}]

    def tip(count: int, by: int) -> Callable[[np.ndarray], np.ndarray]:
        def wrong(y: np.ndarray) -> np.ndarray:
            y = y.copy()
            y.reshape(-1)[:count] += np.uint8(by)
            return y

        return wrong

    assert check(model, feeds).ties == 0
    for count, by, ties, culprits in ((3, 1, 3, 0), (3, 2, 0, 1), (400, 1, 0, 1)):
        mutate(monkeypatch, "QuantizeLinear", tip(count, by))
        found = check(model, feeds)
        assert (found.ties, len(found.culprits), found.codes, found.flipped) == (ties, culprits, 1000, count)
        assert bool(found.objection) == bool(culprits)


def test_codes_that_tip_over_because_of_what_is_in_front_are_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, "MatMul", lambda y: y * F(1 + 5e-5))  # within the tolerance, and enough to tip codes
    weights = {"s": np.array(1e-4, F), "z": np.array(0, np.int16), "w": floats(8, 4)}
    nodes = [node("MatMul", "x w", "h"), node("QuantizeLinear", "h s z", "q"), node("DequantizeLinear", "q s z", "y")]
    found = check(build(nodes, {"x": [3, 8]}, ["y"], weights, opset=21))
    assert found.flipped > 0
    assert (found.culprits, found.ties, found.objection) == ((), 0, "")
    assert found.parting is not None
    assert (found.parting.node, found.parting.is_step) == ("n_q", True)


@pytest.mark.parametrize("name", ["digits_cnn", "digits_depthwise", "digits_attention", "digits_if", "digits_lstm"])
@pytest.mark.parametrize("recipe", ["", "dynamic-int8", "static-int8"])
def test_the_sample_models_agree_node_by_node(name: str, recipe: str, tmp_path: Path) -> None:
    proto = onnx.load(SAMPLES / f"{name}.onnx")
    images = np.load(SAMPLES / "digits_test.npz")
    shape = [d.dim_value or 4 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds = [{proto.graph.input[0].name: next(iter(images.values()))[: shape[0]].reshape(shape)}]
    data = proto.SerializeToString()
    if recipe == "static-int8" and name == "digits_if":  # has bodies to calibrate
        onnxq.quantize(SAMPLES / f"{name}.onnx", recipe, samples=feeds, output=tmp_path / "q.onnx")
        data = (tmp_path / "q.onnx").read_bytes()
    elif recipe:
        data = quantize_in_memory(proto, recipe, feeds if recipe == "static-int8" else ()).data
    found = check_engines(data, feeds)
    assert (found.culprits, found.ties, found.notes) == ((), 0, ())
    if found.flipped:
        assert recipe
        assert found.parting is not None
        assert (found.parting.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"), found.parting.max_abs) == (
            True,
            1,
        )
    else:
        assert max(output.relative for output in found.outputs) <= 1e-4


def test_an_operator_that_only_onnxruntime_knows_is_said_and_the_rest_checked() -> None:
    nodes = [
        node("Relu", "x", "r"),
        node("Trilu", "r", "g", domain="com.microsoft"),
        node("MatMul", "g w", "y"),
    ]
    model = build_with_domain(nodes, "com.microsoft", {"w": floats(8, 4)})
    found = check(model)
    assert (found.nodes, found.culprits, found.objection) == (2, (), "")
    assert "n_g (com.microsoft.Trilu)" in found.notes[0]
    assert found.notes[0].endswith("its result is taken from onnxruntime")
    assert found.notes[1] == "only the first sample was compared with the reference evaluator"
    assert found.outputs[0].elements == 12


def build_with_domain(nodes: list[onnx.NodeProto], domain: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = perceptron()
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def test_an_operator_that_onnxruntime_does_not_know() -> None:
    model = build_with_domain([node("Odd", "x", "y", domain="acme")], "acme", {})
    with pytest.raises(CheckFailed, match=r"onnxruntime cannot load or run the model: .*Odd"):
        check(model, blame=CheckFailed)


def test_random_results_are_not_compared() -> None:
    nodes = [node("RandomNormalLike", "x", "r"), node("Relu", "r", "y")]
    found = check(build(nodes, {"x": [3, 8]}))
    assert (found.nodes, found.objection) == (1, "")
    assert found.notes[0] == "random results are not compared: n_r"


def test_types_that_onnxruntime_does_not_show_are_taken_from_the_evaluator() -> None:
    weights = {"s": np.array(0.5, F), "w": floats(8, 4)}
    nodes = [
        node("QuantizeLinear", "x s", "q", output_dtype=TensorProto.INT4),
        node("DequantizeLinear", "q s", "d"),
        node("MatMul", "d w", "y"),
    ]
    found = check(build(nodes, {"x": [3, 8]}, ["y"], weights, opset=21))
    assert (found.nodes, found.objection) == (2, "")


def test_sequences() -> None:
    nodes = [
        node("SequenceConstruct", "x x", "s"),
        node("SequenceAt", "s one", "a"),
        node("Relu", "a", "y"),
    ]
    assert check(build(nodes, {"x": [3, 8]}, ["y"], {"one": np.array(1)})).nodes == 3


def test_large_models_are_shown_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.verification.engines.tensors.MOST_BYTES", 1)
    assert check(perceptron()).nodes == 3
    evaluator = Evaluator(perceptron())
    tensors = InnerTensors(evaluator, FEEDS[0])
    assert [[v.name for v in tensors.of(index)] for index in range(3)] == [["h"], ["r"], ["y"]]


def test_whom_it_blames() -> None:
    with pytest.raises(InvalidResult, match="gives NaN or infinity in output 'y', sample 0"):
        check(build([node("Log", "x", "y")], {"x": [3, 8]}))
    with pytest.raises((CheckFailed, ModelError)):
        check_engines(b"nonsense", FEEDS, blame=CheckFailed)
    with pytest.raises(DataError, match="no samples"):
        check(perceptron(), [])
    with pytest.raises(CheckFailed, match="onnxruntime cannot load or run"):
        check(perceptron(), [{"x": floats(3, 7)}], blame=CheckFailed)


@pytest.mark.parametrize(
    ("expected", "got", "within"),
    [
        (np.array([1, 100], F), np.array([1.009, 100], F), True),
        (np.array([1, 100], F), np.array([1.011, 100], F), False),
        (np.array([-1e9, 1], F), np.array([-1e9, 1.001], F), False),  # a mask's number does not hide what is beside it
        (np.array([-1e9, 1], F), np.array([-1.00001e9, 1], F), True),
        (np.array([100, 1], np.float16), np.array([100.1, 1], np.float16), True),
        (np.array([100, 1], np.float16), np.array([100.5, 1], np.float16), False),
        (np.array([100, 1], np.float64), np.array([100.02, 1], np.float64), False),
        (np.zeros(2, F), np.full(2, 1e-9, F), False),
        (np.array([np.nan, np.inf, 1], F), np.array([np.nan, np.inf, 1], F), True),
        (np.array([np.inf, 1], F), np.array([-np.inf, 1], F), False),
        (np.array([np.nan, 1], F), np.array([0, 1], F), False),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array(3.0, F), np.array(3.0001, F), True),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        (np.array([True]), np.array([False]), False),
        ([np.ones(2, F)], [np.ones(2, F)], True),
        ([np.ones(2, F)], [], False),
        (None, None, True),
        (np.ones(2, F), np.ones(3, F), False),
        (np.ones(2, F), np.ones(2, np.float64), False),
    ],
)
def test_tolerance(expected: Any, got: Any, within: bool) -> None:
    assert gap(expected, got).within is within


def test_the_evaluator_runs_on_the_first_samples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.verification.engines.check.MOST_EVALUATED", 2)
    found = check(perceptron())
    assert (found.outputs[0].elements, found.optimised[0].elements) == (24, 36)
    assert found.notes == ("only the first 2 samples were compared with the reference evaluator",)


def test_progress() -> None:
    seen: list[tuple[int, int | None]] = []
    check(perceptron(), progress=lambda *at: seen.append(at))
    assert seen == [(1, None), (2, None), (3, None)]


@pytest.mark.parametrize("level", [0, 1, 4])
def test_an_input_that_may_be_rounded_is_no_disagreement(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    source = build([node("MatMul", "x w", "y")], {"x": [3, 64]}, ["y"], {"w": floats(64, 32, seed=5)})
    feeds = [{"x": floats(3, 64, seed=seed)} for seed in range(2)]
    settings = {"form": "matmulnbits", "block_size": 32, "accuracy_level": level}
    made = quantize_in_memory(source, "weight-int8", **settings).proto
    found = check(made, feeds)
    assert found.culprits == ()
    mutate(monkeypatch, "MatMulNBits", lambda y: y * F(1.005 if level < 2 else 1.1))
    assert [culprit.op_type for culprit in check(made, feeds).culprits] == ["com.microsoft.MatMulNBits"]


@pytest.mark.parametrize(("off", "culprits"), [(1, []), (20, ["If"])])
def test_codes_in_a_body_may_tip_over(monkeypatch: pytest.MonkeyPatch, off: int, culprits: list[str]) -> None:
    bodies = {}
    for name in ("then_branch", "else_branch"):
        inner = [
            node("QuantizeLinear", "x scale zero", f"{name}_codes"),
            node("DequantizeLinear", f"{name}_codes scale zero", f"{name}_y"),
        ]
        made = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [3, 8])
        bodies[name] = helper.make_graph(inner, name, [], [made])
    nodes = [node("If", "condition", "y", **bodies)]
    weights = {"condition": np.array(True), "scale": np.array(0.02, F), "zero": np.array(128, np.uint8)}
    proto = build(nodes, {"x": [3, 8]}, ["y"], weights)
    mutate(monkeypatch, "QuantizeLinear", lambda codes: np.clip(codes.astype(int) + off, 0, 255).astype(np.uint8))
    assert [culprit.op_type for culprit in check(proto).culprits] == culprits


@pytest.mark.parametrize(("off", "culprits"), [(1e-8, []), (1e-5, ["ReduceMean"])])
def test_a_sum_that_cancels_is_compared_by_what_it_sums(
    monkeypatch: pytest.MonkeyPatch, off: float, culprits: list[str]
) -> None:
    proto = build([node("ReduceMean", "x", "y", keepdims=0)], {"x": [3, 8]}, ["y"], {})
    feeds = [{"x": np.concatenate([half := floats(3, 4), np.nextafter(-half, F(0))], axis=1)}]
    mutate(monkeypatch, "ReduceMean", lambda mean: mean + F(off))
    assert [culprit.op_type for culprit in check(proto, feeds).culprits] == culprits


def test_nan_is_traced_to_the_node_that_makes_it_of_infinity() -> None:
    """A mask of -inf is no fault; a row of nothing else is."""
    nodes = [node("Where", "m x inf", "s"), node("Softmax", "s", "p"), node("Neg", "p", "n"), node("Abs", "n", "y")]
    proto = build(nodes, {"m": (TensorProto.BOOL, [3, 8]), "x": [3, 8]}, ["y"], {"inf": np.array(-np.inf, F)})
    kept = np.arange(24).reshape(3, 8) < 16
    where = r"in output 'y', sample 1, first behind Softmax node n_p \(tensor 'p'\)"
    with pytest.raises(InvalidResult, match=where):
        check(proto, [{"m": kept | True, "x": floats(3, 8)}, {"m": kept, "x": floats(3, 8)}])


def test_codes_of_nan_are_said_to_be_of_nan() -> None:
    nodes = [node("Log", "x", "l"), node("DynamicQuantizeLinear", "l", "q s z"), node("Cast", "q", "y", to=1)]
    where = r"DynamicQuantizeLinear node n_q reads NaN in tensor 'l', sample 0, first behind Log node n_l"
    with pytest.raises(InvalidResult, match=where):
        check(build(nodes, {"x": [3, 8]}))


def test_a_node_that_makes_differences_of_the_last_bits_is_no_culprit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a channel that is the same everywhere nothing but rounding is left, and that is enlarged."""
    nodes = [node("InstanceNormalization", "x one none", "h", epsilon=1e-12), node("Mul", "h k", "y")]
    weights = {"one": np.ones(3, F), "none": np.zeros(3, F), "k": np.array(100, F)}
    proto = build(nodes, {"x": [1, 3, 5]}, ["y"], weights)
    feeds = {"x": np.broadcast_to(floats(1, 3, 1), (1, 3, 5)).copy()}
    mutate(monkeypatch, "InstanceNormalization", lambda y: y + F(0.05))
    found = check(proto, [feeds])
    assert (found.culprits, found.objection) == ((), "")
    assert "node n_h makes differences of the last bits of what it reads" in found.notes[0]
    feeds = {"x": floats(1, 3, 5)}
    assert [culprit.node for culprit in check(proto, [feeds]).culprits] == ["n_h"]


def test_what_cancels_has_no_more_digits_than_it_was_added_up_from(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, "Relu", lambda y: y * F(1 + 2e-7))
    nodes = [node("Relu", "x", "r"), node("Sub", "r k", "s"), node("Neg", "s", "y")]
    x = np.abs(floats(3, 8)) + F(1)
    proto = build(nodes, {"x": [3, 8]}, ["y"], {"k": x * F(1 + 1e-4)})
    found = check(proto, [{"x": x}])
    assert (found.culprits, found.within, found.objection) == ((), False, "")
    assert found.parting is not None
    assert (found.parting.node, found.parting.is_step) == ("n_s", True)
