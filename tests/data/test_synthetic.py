"""Made-up samples: seeded, of sensible sizes, and of sizes that the model takes."""

import numpy as np
import pytest
from helpers import build, floats, node, run, typed
from onnx import TensorProto

from onnxq.data.samples import InputSpec, input_specs
from onnxq.data.synthetic import random_samples, synthetic_samples
from onnxq.errors import DataError
from onnxq.ir.storage import residency


def test_random_samples_are_seeded_and_sized_sensibly():
    inputs = [
        InputSpec("pixels", TensorProto.FLOAT, ("batch", None, "h", "w")),
        InputSpec("ids", TensorProto.INT32, ("batch", "seq")),
        InputSpec("mask", TensorProto.BOOL, ("batch", "seq")),
        InputSpec("state", TensorProto.FLOAT16, (2, 5)),
    ]
    samples = random_samples(inputs, 3, seed=7)
    first, again = list(samples), list(samples.limit(1))
    assert {k: (v.shape, v.dtype.name) for k, v in first[0].items()} == {
        "pixels": ((1, 3, 64, 64), "float32"),
        "ids": ((1, 16), "int32"),
        "mask": ((1, 16), "bool"),
        "state": ((2, 5), "float16"),
    }
    for name in first[0]:
        np.testing.assert_array_equal(first[0][name], again[0][name])
    assert not np.array_equal(first[0]["pixels"], first[1]["pixels"])
    assert set(np.unique(np.concatenate([s["ids"] for s in first]))) == {0, 1}
    assert samples.description == "3 samples from random numbers (seed 7)"
    with pytest.raises(DataError, match=r"'t' .* cannot be made up at random"):
        random_samples([InputSpec("t", TensorProto.STRING, (1,))], 1)
    with pytest.raises(DataError, match="'t' has no known rank"):
        random_samples([InputSpec("t", TensorProto.FLOAT, None)], 1)


def test_pictures_with_channels_last_have_pixels_on_both_other_axes():
    shapes = {"x": ("n", "h", "w", 3), "y": ("n", "c", 9, 9)}
    made = next(iter(random_samples([InputSpec(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()], 1)))
    assert {name: array.shape for name, array in made.items()} == {"x": (1, 64, 64, 3), "y": (1, 3, 9, 9)}


def made_up_shapes(nodes, inputs, weights) -> dict[str, tuple[int, ...]]:
    model = typed(build(nodes, inputs, weights=weights))
    samples = synthetic_samples(model, input_specs(model), 2)
    assert len(list(samples)) == 2
    return {name: array.shape for name, array in next(iter(samples)).items()}


def fixed(operator: str, inputs: str, **attributes: object) -> list:
    return [node("Cast", "x", "c", to=TensorProto.FLOAT), node(operator, inputs, "y", **attributes)]


@pytest.mark.parametrize(
    ("nodes", "shape", "weight", "made"),
    [
        (fixed("MatMul", "c w"), ("t", "bands"), (105, 6), (1, 105)),
        (fixed("Gemm", "c w", transB=1), ("t", "bands"), (6, 105), (1, 105)),
        (fixed("Mul", "w c"), ("t", "bands", "of"), (80, 3), (1, 80, 3)),
        (fixed("Conv", "c w", group=2), ("n", "c", "h", "w"), (6, 4, 3, 3), (1, 8, 64, 64)),
    ],
)
def test_sizes_that_a_weight_tells_are_taken(nodes: list, shape: tuple, weight: tuple, made: tuple) -> None:
    assert made_up_shapes(nodes, {"x": list(shape)}, {"w": floats(*weight)}) == {"x": made}


def flattening() -> list:
    """Flatten a map without a batch, [frames, bands], for a layer: its bands are convolved and pooled."""
    return [
        node("Unsqueeze", "x axes", "map"),
        node("Conv", "map k", "c", kernel_shape=[3, 3]),
        node("MaxPool", "c", "p", kernel_shape=[1, 2], strides=[1, 2]),
        node("Squeeze", "p batch", "s"),
        node("Transpose", "s", "t", perm=[1, 0, 2]),
        node("Reshape", "t rows", "r"),
        node("MatMul", "r w", "y"),
    ]


def test_a_layer_that_reads_a_flattened_map_tells_its_sides() -> None:
    """Bands of 82 and 83 give 4 channels of 40; of these, 82 is taken. A window of 3 takes no single frame."""
    weights = {"k": floats(4, 1, 3, 3), "axes": np.array([0, 1]), "batch": np.array([0])}
    weights |= {"w": floats(160, 6), "rows": np.array([-1, 160])}
    assert made_up_shapes(flattening(), {"x": ["frames", "bands"]}, weights) == {"x": (16, 82)}
    nodes = [node("Conv", "x k", "c", strides=[2, 2], pads=[1, 1, 1, 1]), node("Flatten", "c", "f")]
    weights = {"k": floats(2, 3, 3, 3), "w": floats(2 * 48 * 48, 6)}
    for batch in ("n", 0):  # which exporters write for a size that they do not know
        pictures = {"x": [batch, 3, "h", "w"]}
        assert made_up_shapes([*nodes, node("Gemm", "f w", "y")], pictures, weights) == {"x": (1, 3, 96, 96)}


def test_a_map_without_a_batch_has_enough_frames() -> None:
    """Nine windows of 3 need 19 frames and bands, more than the usual size of both."""
    nodes = [node("Unsqueeze", "x axes", "0"), *(node("Conv", f"{i} k", str(i + 1)) for i in range(9))]
    weights = {"k": floats(1, 1, 3, 3), "axes": np.array([0, 1])}
    made = made_up_shapes([*nodes, node("Relu", "9", "y")], {"x": ["frames", "bands"]}, weights)
    assert made == {"x": (64, 64)}


def test_a_recurrent_layer_tells_how_many_features_it_reads() -> None:
    nodes = [node("Unsqueeze", "x one", "s"), node("GRU", "s w r", "y", hidden_size=5)]
    weights = {"w": floats(1, 15, 24), "r": floats(1, 15, 5), "one": np.array([1])}
    assert made_up_shapes(nodes, {"x": ["steps", "bands"]}, weights) == {"x": (1, 24)}


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.UINT8, TensorProto.FLOAT])
def test_token_ids_are_any_that_have_an_embedding(dtype: int) -> None:
    nodes = [
        node("Cast", "ids", "i", to=TensorProto.INT64),
        node("Gather", "table i", "rows"),
        node("Relu", "rows", "y"),
    ]
    made = build(nodes, {"ids": ["b", 64]}, weights={"table": floats(400, 4)})
    made.graph.input[0].type.tensor_type.elem_type = dtype
    model = typed(made)
    ids = np.concatenate([sample["ids"] for sample in synthetic_samples(model, input_specs(model), 8)])
    assert (ids == np.round(ids)).all()
    assert ids.min() >= 0
    assert (250 if dtype == TensorProto.UINT8 else 390) < ids.max() < 400


def test_token_ids_are_safe_where_a_model_takes_no_others() -> None:
    """Of 400 rows, those from 300 on are looked up in a second table that is too short."""
    nodes = [
        node("Gather", "table ids", "a"),
        node("Sub", "ids shift", "i"),
        node("Gather", "short i", "b"),
        node("Add", "a b", "y"),
    ]
    weights = {"table": floats(400, 4), "short": floats(4, 4), "shift": np.array(1)}
    made = build(nodes, {"ids": ["b", 64]}, weights=weights)
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    model = typed(made)
    ids = np.concatenate([sample["ids"] for sample in synthetic_samples(model, input_specs(model), 8)])
    assert set(np.unique(ids)) == {0, 1}


def test_a_window_of_audio_is_found_by_trying():
    """128 samples are reflected at one end, which needs more of them than the usual size."""
    nodes = [node("Pad", "x pads", "p", mode="reflect"), node("MatMul", "p w", "y")]
    weights = {"pads": np.array([0, 0, 0, 128]), "w": np.ones((384, 4), np.float32)}
    assert made_up_shapes(nodes, {"x": ["b", "n"]}, weights) == {"x": (1, 256)}


def test_the_batch_of_a_state_is_not_its_first_axis():
    """Input and state are batched alike, under two names."""
    nodes = [node("Transpose", "h", "t", perm=[1, 0, 2]), node("Concat", "t x", "y", axis=1)]
    inputs = {"x": ["b", "n", 8], "h": [2, "batch", 8]}
    assert made_up_shapes(nodes, inputs, {}) == {"x": (1, 16, 8), "h": (2, 1, 8)}


def test_rows_that_another_input_names_by_number_are_more_than_one():
    """A graph of nodes and edges: the numbers at both ends of an edge are 0 or 1."""
    nodes = [node("Gather", "x edges", "g"), node("MatMul", "g w", "y")]
    inputs = {"x": ["nodes", 4], "edges": (TensorProto.INT64, [2, "edge"])}
    assert made_up_shapes(nodes, inputs, {"w": floats(4, 4)}) == {"x": (16, 4), "edges": (2, 16)}


def test_a_mask_covers_what_is_past_and_what_is_new():
    nodes = [node("Concat", "past x", "all", axis=2), node("Mul", "all mask", "y")]
    inputs = {"x": [1, 4, "seq", 8], "past": [1, 4, "past", 8], "mask": [1, 1, "past + seq", 1]}
    assert made_up_shapes(nodes, inputs, {}) == {"x": (1, 4, 64, 8), "past": (1, 4, 64, 8), "mask": (1, 1, 128, 1)}


def test_an_input_named_past_is_empty_where_sizes_have_names_that_say_nothing():
    """Exported with independent sizes, keys and mask do not say that one is as long as the other and what is new."""
    nodes = [node("Concat", "past.0.key x", "all", axis=2), node("Mul", "all mask", "y")]
    inputs = {"x": [1, 4, "s0", 8], "past.0.key": [1, 4, "s1", 8], "mask": [1, 1, "s2", 1]}
    found = made_up_shapes(nodes, inputs, {})
    assert found == {"x": (1, 4, 64, 8), "past.0.key": (1, 4, 0, 8), "mask": (1, 1, 64, 1)}


def test_small_sizes_are_tried_before_the_largest():
    """One token beside one earlier one: a mask of length 1 covers both, and nothing longer fits."""
    nodes = [node("Concat", "before x", "all", axis=1), node("Mul", "all mask", "y")]
    inputs = {"x": [1, "s0"], "before": [1, "s1"], "mask": [1, "s2"]}
    assert made_up_shapes(nodes, inputs, {}) == {"x": (1, 1), "before": (1, 1), "mask": (1, 1)}


def test_without_a_size_that_runs_the_usual_ones_are_given():
    nodes = [node("Reshape", "x shape", "y")]
    assert made_up_shapes(nodes, {"x": ["n", 32]}, {"shape": np.array([5, 32])}) == {"x": (1, 32)}


def attention(mask: dict, nodes: list, weights: dict):
    """A Softmax of scores under a mask: scores that are made of ids, and what they attend to."""
    first = [node("Gather", "table ids", "q"), node("Transpose", "q", "k", perm=[0, 2, 1]), node("MatMul", "q k", "s")]
    last = [node("Softmax", "m", "p"), node("MatMul", "p q", "y")]
    weights = {"table": floats(2, 8), "inf": np.array(-np.inf, np.float32), **weights}
    return build(first + nodes + last, {"ids": (TensorProto.INT64, ["b", "n"]), **mask}, ["y"], weights)


LOWEST = np.array(np.finfo(np.float32).min)
SQUARE, ROW = ["b", 4, 4], ["b", 1, 4]
CAUSAL = [node("Add", "s causal", "s2")]
MASKS = {
    "a bool for what is kept": (TensorProto.BOOL, SQUARE, [node("Where", "mask s inf", "m")]),
    "a bool for what is masked": (TensorProto.BOOL, SQUARE, [node("Where", "mask inf s", "m")]),
    "kept, behind a causal mask": (TensorProto.BOOL, ROW, [*CAUSAL, node("Where", "mask s2 inf", "m")]),
    "masked, behind a causal mask": (TensorProto.BOOL, ROW, [*CAUSAL, node("Where", "mask inf s2", "m")]),
    "integers": (
        TensorProto.INT64,
        ROW,
        [*CAUSAL, node("Equal", "mask zero", "none"), node("Where", "none inf s2", "m")],
    ),
    "floats": (
        TensorProto.FLOAT,
        ROW,
        [*CAUSAL, node("Sub", "one mask", "i"), node("Mul", "i lowest", "a"), node("Add", "s2 a", "m")],
    ),
    "logarithms": (TensorProto.FLOAT, SQUARE, [node("Log", "mask", "l"), node("Add", "s l", "m")]),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_leaves_something_to_attend_to(name: str) -> None:
    dtype, shape, nodes = MASKS[name]
    causal = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    weights = {"zero": np.array(0), "one": np.array(1, np.float32), "lowest": LOWEST, "causal": causal}
    proto = attention({"mask": (dtype, shape)}, nodes, weights)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    model = typed(proto)
    usual = list(random_samples(input_specs(model), 8))
    made = list(synthetic_samples(model, input_specs(model), 8))
    data = proto.SerializeToString()
    assert not all(np.isfinite(run(data, sample)[0]).all() for sample in usual)
    assert all(np.isfinite(run(data, sample)[0]).all() for sample in made)
    assert all(np.array_equal(one["ids"], other["ids"]) for one, other in zip(usual, made, strict=True))
    assert len({sample["mask"].tobytes() for sample in made}) > 1


def test_nothing_to_attend_to_shows_behind_codes_too() -> None:
    """Codes of NaN are numbers like others: the outputs alone say nothing."""
    proto = attention({"mask": (TensorProto.BOOL, ["b", 1, 1])}, [node("Where", "mask s inf", "m")], {})
    proto.graph.node[-1].output[0] = proto.graph.node[-1].name = "z"
    proto.graph.node.append(node("DynamicQuantizeLinear", "z", "y scale zero"))
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    model = typed(proto)
    assert all(sample["mask"].all() for sample in synthetic_samples(model, input_specs(model), 8))


def test_the_usual_numbers_are_given_where_none_are_sound() -> None:
    model = typed(build([node("Sub", "x x", "z"), node("Div", "z z", "y")], {"x": [1, 4]}))
    usual = list(random_samples(input_specs(model), 2))
    for one, other in zip(synthetic_samples(model, input_specs(model), 2), usual, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


def test_fewer_made_up_samples_are_made_up() -> None:
    samples = random_samples([InputSpec("x", TensorProto.FLOAT, (1, 2))], 4)
    assert samples.limit(2).made_up


def test_masks_of_large_models_are_looked_at_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = attention({"mask": (TensorProto.BOOL, ["b", 1, 1])}, [node("Where", "mask s inf", "m")], {})
    model = typed(proto)
    monkeypatch.setattr(residency, "LARGE", 0)
    assert all(sample["mask"].all() for sample in synthetic_samples(model, input_specs(model), 8))
