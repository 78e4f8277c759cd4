"""Attention with caches and masks as one operator: what is recognised, what stays, and that values are the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from decoders import optimum_decoder
from helpers import ALL, NONE, applied, count_ops, floats, node, run, typed
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir.opset import raise_opset
from onnxq.ir.shape_inference.types import infer_types
from onnxq.optimize.attention.cached_attention import cached_attention

HEADS, KV_HEADS, SIZE = 4, 2, 16
WIDTH, KV_WIDTH = HEADS * SIZE, KV_HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)


def rotated(name: str) -> list[onnx.NodeProto]:
    """Rotate halves of heads as PyTorch's `rotate_half` does."""
    return [
        node("Slice", f"{name}h zeros half last ones", f"{name}1"),
        node("Slice", f"{name}h half end last ones", f"{name}2"),
        node("Neg", f"{name}2", f"{name}n"),
        node("Concat", f"{name}n {name}1", f"{name}t", axis=-1),
        node("Mul", f"{name}h cos4", f"{name}c"),
        node("Mul", f"{name}t sin4", f"{name}s"),
        node("Add", f"{name}c {name}s", f"{name}r"),
    ]


def normed(name: str) -> list[onnx.NodeProto]:
    """Divide heads by their root mean square, in small nodes."""
    return [
        node("Mul", f"{name}0 {name}0", f"{name}square"),
        node("ReduceMean", f"{name}square", f"{name}mean", axes=[-1]),
        node("Add", f"{name}mean tiny", f"{name}sum"),
        node("Sqrt", f"{name}sum", f"{name}root"),
        node("Div", f"{name}0 {name}root", f"{name}unit"),
        node("Mul", f"{name}unit gains", f"{name}4"),
    ]


def hidden() -> list[onnx.NodeProto]:
    """Let a token see what the mask admits, as far as itself."""
    return [
        node("Shape", "position_ids", "many", start=1, end=2),
        node("Shape", "attention_mask", "all", start=1, end=2),
        node("Sub", "all many", "before"),
        node("Squeeze", "all", "total"),
        node("Range", "zero total one", "columns"),
        node("Squeeze", "many", "length"),
        node("Range", "zero length one", "rows0"),
        node("Add", "rows0 before", "rows"),
        node("Unsqueeze", "rows last", "down"),
        node("LessOrEqual", "columns down", "past_seen"),
        node("Cast", "attention_mask", "told", to=TensorProto.BOOL),
        node("Unsqueeze", "told middle", "told4"),
        node("And", "past_seen told4", "seen"),
    ]


def decoder(
    *,
    cached: bool = True,
    low: float = -np.inf,
    where: bool = False,
    tail: str = "",
    length: int | str = "length",
    norm: bool = False,
) -> onnx.ModelProto:
    """Attention of heads that share keys and values, with rotations at given places."""
    nodes = [
        *hidden(),
        node("Cast", "position_ids", "places", to=TensorProto.FLOAT),
        node("Unsqueeze", "places last", "places3"),
        node("Mul", "places3 rates", "halves"),
        node("Concat", "halves halves", "angles", axis=-1),
        node("Cos", "angles", "cos"), node("Sin", "angles", "sin"),
        node("Unsqueeze", "cos ones", "cos4"), node("Unsqueeze", "sin ones", "sin4"),
    ]  # fmt: skip
    for name in "qkv":
        within = norm and name != "v"
        nodes += [
            node("Reshape", f"{name} split", f"{name}0" if within else f"{name}4"),
            *(normed(name) if within else []),
            node("Transpose", f"{name}4", f"{name}h", perm=[0, 2, 1, 3]),
        ]
    nodes += [*rotated("q"), *rotated("k")]
    for name, made in (("k", "kr"), ("v", "vh")):
        grown = f"present.{name}" if cached else made
        nodes += [node("Concat", f"past.{name} {made}", grown, axis=2)] if cached else []
        nodes += [
            node("Unsqueeze", f"{grown} twos", f"{name}5"),
            node("Expand", f"{name}5 repeat", f"{name}e"),
            node("Reshape", f"{name}e together", f"{name}w"),
        ]
    nodes += [node("Transpose", "kw", "turned", perm=[0, 1, 3, 2]), node("MatMul", "qr turned", "raw")]
    nodes += [node("Mul", "raw scale", "scaled")]
    if where:
        nodes += [node("Where", "seen scaled low", "logits")]
    else:
        nodes += [node("Where", "seen none low", "bias"), node("Add", "scaled bias", "logits")]
    weights = "soft"
    nodes += [node("Softmax", "logits", "soft", axis=-1)]
    if np.isinf(low):
        nodes += [node("IsNaN", "soft", "nan"), node("Where", "nan none soft", "sound")]
        weights = "sound"
    nodes += [
        *([node(tail, weights, "bent")] if tail else []),
        node("MatMul", f"{'bent' if tail else weights} vw", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Reshape", "back joined", "result"),
        node("Sigmoid", "result", "y"),
    ]
    return _model(nodes, cached, low, length)


def _model(nodes: list[onnx.NodeProto], cached: bool, low: float, length: int | str) -> onnx.ModelProto:
    numbers = {
        "zero": np.array(0), "one": np.array(1), "ones": np.array([1]), "zeros": np.array([0]), "twos": np.array([2]),
        "half": np.array([SIZE // 2]), "end": np.array([1 << 62]), "last": np.array([-1]), "middle": np.array([1, 2]),
        "split": np.array([0, 0, -1, SIZE]), "joined": np.array([0, 0, WIDTH]), "scale": np.float32(0.3),
        "repeat": np.array([1, 1, HEADS // KV_HEADS, 1, 1]), "together": np.array([0, HEADS, -1, SIZE]),
        "none": np.float32(0), "low": np.float32(low), "tiny": np.float32(1e-6), "gains": 1 + floats(SIZE, seed=3),
        "rates": (1e4 ** -(np.arange(SIZE // 2) / (SIZE // 2))).astype(np.float32),
    }  # fmt: skip
    read = {name for step in nodes for name in step.input}
    total: int | str = "total" if cached else length
    floating: dict[str, list[int | str]] = {
        "q": ["batch", length, WIDTH],
        "k": ["batch", length, KV_WIDTH],
        "v": ["batch", length, KV_WIDTH],
    }
    caches: dict[str, list[int | str]] = (
        {f"past.{name}": ["batch", KV_HEADS, "past", SIZE] for name in "kv"} if cached else {}
    )
    told: dict[str, list[int | str]] = {"attention_mask": ["batch", total], "position_ids": ["batch", length]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (floating | caches).items()]
    inputs += [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in told.items()]
    shapes: dict[str, list[int | str]] = {"y": ["batch", length, WIDTH]}
    shapes |= {f"present.{name}": ["batch", KV_HEADS, "total", SIZE] for name in "kv"} if cached else {}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items() if name in read]
    graph = helper.make_graph(nodes, "g", inputs, outputs, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def feeds(batch: int, length: int, past: int | None, *, left: int = 0) -> Mapping[str, np.ndarray]:
    """Projections, caches, and a mask whose last text has so many tokens in front that are none."""
    before = past or 0
    mask = np.ones((batch, before + length), np.int64)
    mask[-1, :left] = 0
    widths = {"q": WIDTH, "k": KV_WIDTH, "v": KV_WIDTH}
    made: dict[str, np.ndarray] = {name: floats(batch, length, n, seed=ord(name)) for name, n in widths.items()}
    if past is not None:
        made |= {f"past.{name}": floats(batch, KV_HEADS, past, SIZE, seed=ord(name) + 9) for name in "kv"}
    places = np.maximum(np.cumsum(mask, axis=1) - 1, 0)[:, before:]
    return {**made, "attention_mask": mask, "position_ids": places}


def optimized(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """The model after the pass, and how many graphs it changed."""
    made = raise_opset(typed(proto), 23)
    infer_types(made)
    count = applied(cached_attention, made)
    after = onnx.ModelProto.FromString(made.serialize())
    onnx.checker.check_model(after)
    return after, count


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("low", "where"), [(-np.inf, False), (LOWEST, False), (-1e9, False), (-np.inf, True), (LOWEST, True)]
)
def test_it_is_one_operator_of_the_same_values(cached: bool, low: float, where: bool) -> None:
    proto = decoder(cached=cached, low=low, where=where)
    after, count = optimized(proto)
    assert count == 1
    counts = count_ops(after)
    assert (counts["Attention"], counts["RotaryEmbedding"]) == (1, 2)
    assert {"Softmax", "MatMul", "Neg", "IsNaN"}.isdisjoint(counts)
    assert "n_result" in [step.name for step in after.graph.node]
    sizes = [(1, 1, 6), (1, 5, 0), (2, 4, 3), (3, 1, 2)] if cached else [(1, 7, None), (2, 3, None)]
    for batch, many, past in sizes:
        for left in (0, 2):  # the first tokens of the last text see nothing
            given = feeds(batch, many, past, left=left)
            expected = run(proto.SerializeToString(), given, NONE)
            for level in (NONE, ALL):
                for ours, theirs in zip(run(after.SerializeToString(), given, level), expected, strict=True):
                    np.testing.assert_allclose(ours, theirs, atol=3e-6)


@pytest.mark.parametrize("cached", [True, False])
def test_norms_of_heads_stay_in_front_of_it(cached: bool) -> None:
    proto = decoder(cached=cached, norm=True)
    after, count = optimized(proto)
    assert count == 1
    counts = count_ops(after)
    assert (counts["Attention"], counts["RotaryEmbedding"], counts["Sqrt"]) == (1, 2, 2)
    assert "Softmax" not in counts
    for batch, many, past in [(1, 1, 6), (2, 4, 3)] if cached else [(1, 7, None), (2, 3, None)]:
        given = feeds(batch, many, past, left=2)
        pairs = zip(run(after.SerializeToString(), given), run(proto.SerializeToString(), given), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_length_that_projections_have_lost_is_that_of_the_inputs() -> None:
    """Decoders that read one token at a time may have projections of any length, as far as their shapes tell."""
    proto = decoder(length=1)
    for value in proto.graph.input:
        if value.name in "qkv":
            value.type.tensor_type.shape.dim[1].dim_param = "lost"
    after, count = optimized(proto)
    assert count == 1
    given = feeds(2, 1, 5)
    for ours, theirs in zip(run(after.SerializeToString(), given), run(proto.SerializeToString(), given), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)


def test_fixed_lengths_and_other_exporters() -> None:
    assert optimized(decoder(cached=False, length=24))[1] == 1
    proto = optimum_decoder()
    after, count = optimized(proto)
    assert count == 1
    assert "Softmax" not in count_ops(after)
    rng = np.random.default_rng(0)
    given = {
        "input_ids": rng.integers(0, 64, (2, 3)), "attention_mask": np.array([[1] * 8, [0] * 2 + [1] * 6]),
        "position_ids": np.array([[5, 6, 7], [5, 6, 7]]),
        "past_key_values.0.key": floats(2, 4, 5, 16), "past_key_values.0.value": floats(2, 4, 5, 16, seed=1),
    }  # fmt: skip
    for ours, theirs in zip(run(after.SerializeToString(), given), run(proto.SerializeToString(), given), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-6)


@pytest.mark.parametrize("proto", [decoder(tail="Sigmoid"), decoder(low=-3.0, where=True)])
def test_others_stay(proto: onnx.ModelProto) -> None:
    assert optimized(proto)[1] == 0


def test_an_inner_value_that_others_read_stays() -> None:
    proto = decoder()
    proto.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    assert optimized(proto)[1] == 0


def conv1d(layers: int = 2) -> onnx.ModelProto:
    """Layers as GPT-2 has them: flattened around one product for all projections, and no positions among the inputs."""
    nodes = [
        node("Shape", "input_ids", "read"), node("Gather", "read one", "many0", axis=0),
        node("Unsqueeze", "many0 zeros", "many"), node("Concat", "minus many", "flat_ids", axis=0),
        node("Reshape", "input_ids flat_ids", "ids"), node("Gather", "table ids", "h0"),
        node("Shape", "attention_mask", "all", start=1, end=2), node("Squeeze", "all", "total"),
        node("Range", "zero total one", "columns"), node("Squeeze", "many", "length"),
        node("Sub", "total length", "past"),
        node("Range", "zero length one", "rows0"), node("Add", "rows0 past", "rows"),
        node("Unsqueeze", "rows ones", "down"),
        node("LessOrEqual", "columns down", "causal"), node("Cast", "attention_mask", "told", to=TensorProto.BOOL),
        node("Unsqueeze", "told middle", "told4"), node("And", "causal told4", "seen"),
        node("Where", "seen none low", "bias"), node("Gather", "place rows", "places"), node("Add", "h0 places", "x0"),
    ]  # fmt: skip
    for layer in range(layers):
        p = f"{layer}."
        nodes += [
            node("Shape", f"x{layer}", f"{p}shape"), node("Slice", f"{p}shape zeros twos", f"{p}sizes"),
            node("Reshape", f"x{layer} flat", f"{p}rows"), node("Gemm", f"{p}rows w", f"{p}made"),
            node("Concat", f"{p}sizes wide", f"{p}back", axis=0), node("Reshape", f"{p}made {p}back", f"{p}qkv"),
            node("Split", f"{p}qkv parts", f"{p}q {p}k {p}v", axis=-1),
        ]  # fmt: skip
        for name in "qkv":
            nodes += [
                node("Reshape", f"{p}{name} split", f"{p}{name}4"),
                node("Transpose", f"{p}{name}4", f"{p}{name}h", perm=[0, 2, 1, 3]),
            ]
        nodes += [
            node("Concat", f"past{layer}.k {p}kh", f"present{layer}.k", axis=2),
            node("Concat", f"past{layer}.v {p}vh", f"present{layer}.v", axis=2),
            node("Transpose", f"present{layer}.k", f"{p}turned", perm=[0, 1, 3, 2]),
            node("MatMul", f"{p}qh {p}turned", f"{p}raw"), node("Mul", f"{p}raw scale", f"{p}scaled"),
            node("Add", f"{p}scaled bias", f"{p}logits"), node("Softmax", f"{p}logits", f"{p}soft", axis=-1),
            node("MatMul", f"{p}soft present{layer}.v", f"{p}mixed"),
            node("Transpose", f"{p}mixed", f"{p}turned_back", perm=[0, 2, 1, 3]),
            node("Shape", f"{p}turned_back", f"{p}headed"), node("Slice", f"{p}headed zeros twos", f"{p}outer"),
            node("Concat", f"{p}outer minus", f"{p}joined", axis=0),
            node("Reshape", f"{p}turned_back {p}joined", f"{p}result"),
            node("Reshape", f"{p}result flat", f"{p}flat"), node("Gemm", f"{p}flat o", f"{p}projected"),
            node("Concat", f"{p}outer width", f"{p}again", axis=0), node("Reshape", f"{p}projected {p}again", f"{p}y"),
            node("Add", f"x{layer} {p}y", f"x{layer + 1}"),
        ]  # fmt: skip
    numbers = {
        "zero": np.array(0), "one": np.array(1), "ones": np.array([1]), "zeros": np.array([0]), "twos": np.array([2]),
        "minus": np.array([-1]), "middle": np.array([1, 2]), "flat": np.array([-1, WIDTH]), "width": np.array([WIDTH]),
        "wide": np.array([3 * WIDTH]), "parts": np.array([WIDTH] * 3), "split": np.array([0, 0, HEADS, SIZE]),
        "none": np.float32(0), "low": np.float32(LOWEST), "scale": np.float32(SIZE**-0.5),
        "table": floats(50, WIDTH), "place": floats(64, WIDTH, seed=1),
        "w": floats(WIDTH, 3 * WIDTH, scale=0.1, seed=2), "o": floats(WIDTH, WIDTH, scale=0.1, seed=3),
    }  # fmt: skip
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", TensorProto.INT64, ["batch", "length"])]
    inputs += [info("attention_mask", TensorProto.INT64, ["batch", "total"])]
    outputs = [info(f"x{layers}", TensorProto.FLOAT, ["batch", "length", WIDTH])]
    for layer in range(layers):
        for name in "kv":
            inputs.append(info(f"past{layer}.{name}", TensorProto.FLOAT, ["batch", HEADS, "past", SIZE]))
            outputs.append(info(f"present{layer}.{name}", TensorProto.FLOAT, ["batch", HEADS, "total", SIZE]))
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def test_sizes_of_values_inside_and_axes_that_are_flattened_on_the_way() -> None:
    proto = conv1d()
    after, count = optimized(proto)
    assert count == 1
    counts = count_ops(after)
    assert (counts["Attention"], counts["Softmax"]) == (2, 0)
    for batch, many, past in [(1, 1, 6), (1, 5, 0), (2, 4, 3)]:
        mask = np.ones((batch, past + many), np.int64)
        mask[-1, : past // 2] = 0
        given = {"input_ids": np.arange(batch * many).reshape(batch, many), "attention_mask": mask}
        for layer in range(2):
            given |= {f"past{layer}.{n}": floats(batch, HEADS, past, SIZE, seed=ord(n) + layer) for n in "kv"}
        expected = run(proto.SerializeToString(), given, NONE)
        for ours, theirs in zip(run(after.SerializeToString(), given, ALL), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=3e-6)
