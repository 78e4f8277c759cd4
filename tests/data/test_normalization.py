"""Samples that are normalised otherwise than the model expects are found, and others are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.data.conventions import (
    BYTES,
    CENTRED,
    CONVENTIONS,
    IMAGENET,
    SIGNED,
    UNDIVIDED,
    UNIT,
    Convention,
    convention_of,
)
from onnxq.data.examine import examine
from onnxq.data.first_layers import BatchnormInputs, FoldedMeans, LayerInputs, first_layers, influences
from onnxq.data.input_summary import InputSummaries
from onnxq.data.samples import open_samples
from onnxq.data.validation import input_specs
from onnxq.ir import Model, load, parse
from onnxq.ir.shape_inference.types import infer_types

REAL = Path(__file__).parents[3] / "shared" / "real"
COUNT, SIZE = 20, 24
TOO_NEAR = (
    (SIGNED, UNIT),
    (IMAGENET, UNIT),
    (IMAGENET, SIGNED),
    (CENTRED, BYTES),
)  # to be told by means of deep layers
DEEP = (16, 24, 24, 32, 24, 24)  # channels of layers that have biases enough


def pictures() -> np.ndarray:
    """Pictures of 0 to 1 with colours, patches and noise."""
    random = np.random.default_rng(1)
    patches = random.beta(0.6, 0.7, (COUNT, 3, 6, 6)).repeat(4, axis=2).repeat(4, axis=3)
    return np.clip(patches + 0.05 * random.standard_normal((COUNT, 3, SIZE, SIZE)), 0, 1).astype(np.float32)


def as_convention(images: np.ndarray, kind: Convention) -> np.ndarray:
    mean, std = (np.asarray(numbers).reshape(1, 3, 1, 1) for numbers in (kind.mean, kind.std))
    return ((images - mean) / std).astype(np.float32)


def convolved(images: np.ndarray, weight: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight)


def build(
    kind: Convention, *, folded: bool, images: np.ndarray | None = None, sizes: tuple[int, ...] = (8, 16)
) -> Model:
    """Build Conv, BatchNormalization, Relu, Conv, Relu, a mean and Gemm, with the statistics of right data."""
    random = np.random.default_rng(2)
    given = pictures() if images is None else images
    images, weights = as_convention(given, kind).astype(np.float64), {}
    nodes, read = [], "x"
    for index, channels in enumerate(sizes):
        weight = random.standard_normal((channels, images.shape[1], 3, 3)) / 3
        made = convolved(images, weight)
        mean, std = made.mean((0, 2, 3)), made.std((0, 2, 3))
        gamma, beta = random.uniform(0.6, 1.4, channels), random.normal(0.3, 0.4, channels)
        images = np.maximum((made - mean[:, None, None]) / std[:, None, None] * gamma[:, None, None]
                            + beta[:, None, None], 0)  # fmt: skip
        name = f"layer{index}"
        if folded:
            weights[f"{name}.w"] = weight * (gamma / std)[:, None, None, None]
            weights[f"{name}.b"] = beta - mean * gamma / std
            nodes += [helper.make_node("Conv", [read, f"{name}.w", f"{name}.b"], [f"{name}.n"], name)]
        else:
            weights |= {f"{name}.w": weight, f"{name}.s": gamma, f"{name}.b": beta, f"{name}.m": mean}
            weights[f"{name}.v"] = std**2
            nodes += [
                helper.make_node("Conv", [read, f"{name}.w"], [f"{name}.c"], name),
                helper.make_node(
                    "BatchNormalization", [f"{name}.{part}" for part in "csbmv"], [f"{name}.n"], f"{name}.norm"
                ),
            ]
        nodes += [helper.make_node("Relu", [f"{name}.n"], [f"{name}.r"])]
        read = f"{name}.r"
    weights["end.w"] = random.standard_normal((sizes[-1], 10))
    nodes += [
        helper.make_node("GlobalAveragePool", [read], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "end.w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return parse(made.SerializeToString())


@cache
def deep(kind: Convention) -> Model:
    return build(kind, folded=True, sizes=DEEP)


def warnings(model: Model, images: np.ndarray) -> list[tuple[str, str]]:
    found = examine(model, [{"x": image[None]} for image in images])
    return [(warning.code, warning.remedy) for warning in found.warnings]


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("kind", CONVENTIONS, ids=lambda kind: kind.words)
def test_right_samples_raise_no_warning(kind: Convention, folded: bool) -> None:
    assert warnings(build(kind, folded=folded), as_convention(pictures(), kind)) == []


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("kind", CONVENTIONS, ids=lambda kind: kind.words)
def test_mean_and_deviation_without_a_division_are_told(kind: Convention, folded: bool) -> None:
    [(code, remedy)] = warnings(build(kind, folded=folded), as_convention(pictures(), UNDIVIDED))
    assert code == "wrong-normalization"
    assert "x / 255" in remedy or kind.recipe in remedy


def test_samples_with_a_mean_and_deviation_of_their_own_are_told() -> None:
    images = pictures()
    (found,) = warnings(build(UNIT, folded=False), (images - images.mean()) / images.std())
    assert found[0] == "wrong-normalization"
    assert "what fits: 0 … 1 (x / 255, where x is a picture of 0 … 255)" in found[1]
    (found,) = warnings(build(UNIT, folded=False), images * 16)
    assert found[0] == "wrong-normalization"
    assert "what fits: 0 … 1, as by (x - 0) / 16" in found[1]


@pytest.mark.parametrize(
    ("expects", "given"),
    [(UNIT, BYTES), (SIGNED, BYTES), (IMAGENET, BYTES), (BYTES, UNIT), (IMAGENET, CENTRED), (CENTRED, IMAGENET)],
    ids=lambda kind: kind.words,
)
def test_batchnorm_tells_another_convention_and_names_the_right_one(expects: Convention, given: Convention) -> None:
    found = warnings(build(expects, folded=False), as_convention(pictures(), given))
    assert [code for code, _ in found] == ["wrong-normalization"]
    assert expects.words in found[0][1] or expects.recipe in found[0][1]


def test_values_that_overflow_fit_no_batchnorm() -> None:
    """A model in float16 overflows while other conventions are tried: that must not pass for a good fit."""
    model = build(UNIT, folded=False)
    samples = [{"x": np.full((1, 3, SIZE, SIZE), 3e38, np.float32)}]
    nodes = [node for node in model.graph.walk() if node.op_type == "BatchNormalization"]
    assert BatchnormInputs(model, nodes).misfit(samples) == np.inf


def test_other_values_are_tried_on_one_sample_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with BatchNormalization far behind their input take seconds a sample."""
    looks, misfit = list[int](), BatchnormInputs.misfit

    def counted(fit: BatchnormInputs, samples: Sequence[Mapping[str, np.ndarray]]) -> float:
        looks.append(len(samples))
        return misfit(fit, samples)

    monkeypatch.setattr(BatchnormInputs, "misfit", counted)
    assert warnings(build(IMAGENET, folded=False), as_convention(pictures(), BYTES)) != []
    assert looks[1:-2] == [1] * (len(looks) - 3)
    assert looks[0] == looks[-1] == looks[-2] > 1


def test_batchnorm_tells_a_normalization_that_was_applied_twice() -> None:
    images = as_convention(as_convention(0.1 + 0.9 * pictures(), IMAGENET), IMAGENET)  # nothing is black
    (found,) = warnings(build(IMAGENET, folded=False), images)
    assert found[0] == "wrong-normalization"
    assert found[1].endswith("what fits: ImageNet's mean and deviation applied once: it seems to be twice.")


def test_batchnorm_tells_swapped_channels() -> None:
    """Right data are warm: red is bright, blue is dark."""
    images = pictures() * np.array([1.0, 0.5, 0.1], np.float32).reshape(1, 3, 1, 1)
    model = build(UNIT, folded=False, images=images)
    assert warnings(model, images) == []
    found = warnings(model, np.ascontiguousarray(images[:, ::-1]))
    assert [code for code, _ in found] == ["wrong-normalization"]
    assert "RGB instead of BGR" in found[0][1]


def test_biases_tell_pictures_of_16_bit_where_batchnorm_is_folded() -> None:
    (found,) = warnings(build(BYTES, folded=True), as_convention(pictures(), BYTES) * np.float32(257))
    assert found[0] == "wrong-normalization"
    assert found[1].endswith("pictures for example by x / 257, which brings 16 bit to 0 … 255.")


def test_biases_tell_pictures_of_10_bit() -> None:
    (found,) = warnings(build(UNIT, folded=True), as_convention(pictures(), UNIT) * np.float32(1023))
    assert found[0] == "wrong-normalization"


@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_batchnorm_tells_values_255_times_too_large_or_small(factor: float) -> None:
    images = as_convention(pictures(), SIGNED) * np.float32(factor)
    assert [code for code, _ in warnings(build(SIGNED, folded=False), images)] == ["wrong-normalization"]


@pytest.mark.parametrize(
    ("expects", "given"),
    [(UNIT, BYTES), (SIGNED, BYTES), (IMAGENET, BYTES), (BYTES, UNIT), (BYTES, SIGNED), (CENTRED, IMAGENET)],
    ids=lambda kind: kind.words,
)
def test_biases_tell_0_to_255_where_batchnorm_is_folded(expects: Convention, given: Convention) -> None:
    images = as_convention(pictures(), given)
    if given is BYTES:
        images = np.rint(images)
    found = warnings(build(expects, folded=True), images)
    assert [code for code, _ in found] == ["wrong-normalization"]


@pytest.mark.parametrize("expects", CONVENTIONS, ids=lambda kind: kind.words)
@pytest.mark.parametrize("given", CONVENTIONS, ids=lambda kind: kind.words)
def test_means_tell_any_convention_where_batchnorm_is_folded_into_several_layers(
    expects: Convention, given: Convention
) -> None:
    found = warnings(deep(expects), as_convention(pictures(), given))
    if given is expects or (expects, given) in TOO_NEAR:
        assert found == []
        return
    assert [code for code, _ in found] == ["wrong-normalization"]
    if given not in (BYTES, CENTRED) and expects not in (BYTES, CENTRED):
        assert expects.recipe in found[0][1]


def test_right_samples_are_run_up_to_several_layers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other conventions are held against one sample first, and further samples are run for a doubt only."""
    looks, unexplained = list[int](), FoldedMeans.unexplained

    def counted(means: FoldedMeans, samples: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
        looks.append(len(samples))
        return unexplained(means, samples)

    monkeypatch.setattr(FoldedMeans, "unexplained", counted)
    assert warnings(deep(IMAGENET), as_convention(pictures(), IMAGENET)) == []
    assert set(looks) == {1}
    assert warnings(deep(UNIT), as_convention(pictures(), IMAGENET)) != []
    assert max(looks) > 1


def test_samples_of_which_some_fit_are_right() -> None:
    """Half of them have twice the contrast: pictures differ, and a wrong normalization is the same for all."""
    images = pictures()
    images[::2] = np.clip(2.5 * images[::2] - 0.75, 0, 1)
    assert warnings(deep(UNIT), images) == []


@pytest.mark.parametrize("given", CONVENTIONS, ids=lambda kind: kind.words)
def test_biases_that_hold_no_means_say_nothing(given: Convention) -> None:
    """They are of the order of what the filters make of right samples, and of any sign."""
    proto = onnx.load_from_string(deep(given).serialize())
    random = np.random.default_rng(3)
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(".b"):
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(
                numpy_helper.from_array(array * random.choice((-1, 1), array.shape).astype("f"), tensor.name)
            )
    assert warnings(parse(proto.SerializeToString()), as_convention(pictures(), given)) == []


def test_a_model_without_biases_is_not_judged() -> None:
    assert warnings(without_biases(build(SIGNED, folded=True)), as_convention(pictures(), BYTES)) == []


@pytest.mark.parametrize(("ending", "warned"), [("Sigmoid", False), ("Squeeze", False), ("Gemm", True)])
def test_scores_at_their_bound_say_nothing_about_samples(ending: str, warned: bool) -> None:
    assert bool(warnings(detector_of_rare_words(ending), embeddings())) is warned


def embeddings() -> np.ndarray:
    return (20 * np.random.default_rng(4).standard_normal((COUNT, 1, 96))).astype(np.float32)


def detector_of_rare_words(ending: str) -> Model:
    """Build a Gemm with small biases, and a score that is next to zero on all samples; a Gemm may follow."""
    random = np.random.default_rng(5)
    weights = {
        "first.w": random.uniform(-0.1, 0.1, (96, 32)),
        "first.b": random.uniform(-0.1, 0.1, 32),
        "score.w": np.full((32, 1), -0.06),
        "last.w": np.ones((1, 1)),
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "first.w", "first.b"], ["first"], "first"),
        helper.make_node("Relu", ["first"], ["relu"]),
        helper.make_node("Gemm", ["relu", "score.w"], ["logit"], "score"),
        helper.make_node("Sigmoid", ["logit"], ["y" if ending == "Sigmoid" else "score"]),
    ]
    last = ["score", "last.w"] if ending == "Gemm" else ["score"]
    nodes += [helper.make_node(ending, last, ["y"])] if ending != "Sigmoid" else []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 96])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "rare", inputs, outputs, stored)
    return parse(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def without_biases(model: Model) -> Model:
    proto = onnx.load_from_string(model.serialize())
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(".b"):
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    return parse(proto.SerializeToString())


@pytest.mark.parametrize("kind", CONVENTIONS, ids=lambda kind: kind.words)
def test_conventions_are_told_by_their_ranges(kind: Convention) -> None:
    model = build(UNIT, folded=True)
    infer_types(model)
    summaries = InputSummaries(input_specs(model))
    summaries.add({"x": as_convention(pictures(), kind)})
    assert convention_of(summaries.summaries({})[0]) is kind


# -- models of others -------------------------------------------------------------------------------------------------


def rescaled(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: (array * factor).astype(array.dtype)


def test_zeros_of_all_samples_are_run_once() -> None:
    class Counted(LayerInputs):
        count = 0

        def run(self, samples, values):
            self.count += len(samples)
            return super().run(samples, values)

    model = build(UNIT, folded=True)
    samples = [{"x": image[None]} for image in pictures()[:4]]
    layers, taps = first_layers(model, "x").affine, Counted(model)
    found = influences(taps, samples, layers, "x")
    assert taps.count == 2 * len(samples) + 1
    several = [influences(taps, [sample], layers, "x") for sample in samples]
    least, most = (pick(one[0].moved for one in several) for pick in (min, max))
    assert least <= found[0].moved <= most
    given = [{"x": np.ones((1, 3, height, SIZE), np.float32)} for height in (SIZE, SIZE, SIZE - 1, SIZE)]
    taps.count = 0
    influences(taps, given, layers, "x")
    assert taps.count == 2 * len(given) + 3  # one more for each change of the shape


def to_bytes(array: np.ndarray) -> np.ndarray:
    return np.rint(array * 255).astype(array.dtype)


@pytest.mark.skipif(not REAL.is_dir(), reason="the models are not here")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fastestdet", to_bytes),
        ("fastestdet", lambda array: 2 * array - 1),
        ("fsanet_var", rescaled(127.5)),
        ("fsanet_var", rescaled(1 / 255)),
        ("go1_policy", rescaled(1 / 255)),
        ("yunet_n", rescaled(1 / 255)),
        ("mlsd_tiny", rescaled(1 / 255)),
        ("oww_embedding", rescaled(255)),
        ("ppocr_det_v3", rescaled(57)),
    ],
)
def test_wrong_samples_of_real_models_are_named(name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    model = load(REAL / f"{name}.onnx")
    infer_types(model)
    samples = list(open_samples(REAL / f"{name}_calib.npz", input_specs(model)).limit(8))
    right = {warning.code for warning in examine(model, samples).warnings}
    wrong = [{key: change(array) for key, array in sample.items()} for sample in samples]
    found = {warning.code for warning in examine(model, wrong).warnings}
    assert "wrong-normalization" not in right
    assert "wrong-normalization" in found
