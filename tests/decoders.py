"""Small decoders as exporters write them: onnxruntime-genai's builder, and optimum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from helpers import floats, node
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, LENGTH = 64, 64, 4, 2, 16, 96, 128
MICROSOFT = "com.microsoft"


def _rotary(length: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(length)[:, None] / 1e4 ** (np.arange(HEAD // 2) / (HEAD // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def genai_decoder(layers: int = 2, *, half: bool = False) -> onnx.ModelProto:
    """A Llama as onnxruntime-genai's builder writes it, its weights in float16 on request."""
    cos, sin = _rotary(LENGTH)
    weights = {"cos_cache": cos, "sin_cache": sin, "embed.weight": floats(TOKENS, WIDTH, seed=1)}
    nodes = [
        node("ReduceSum", "attention_mask axis", "counted", keepdims=0),
        node("Sub", "counted one", "last"),
        node("Cast", "last", "seqlens_k", to=TensorProto.INT32),
        node("Shape", "attention_mask", "mask_shape"),
        node("Gather", "mask_shape place", "total64"),
        node("Cast", "total64", "total", to=TensorProto.INT32),
        node("Gather", "embed.weight input_ids", "h0"),
    ]
    numbers = {"axis": np.array([1]), "one": np.array([1]), "place": np.array(1)}
    skip = "h0"
    for layer in range(layers):
        nodes += _genai_layer(weights, layer, skip)
        skip = f"mlp.{layer}"
    weights |= {
        "final.weight": 1 + floats(WIDTH, seed=98, scale=0.1),
        "head": floats(WIDTH, TOKENS, seed=99, scale=0.3),
    }
    nodes.append(_skip_norm(f"mid.{layers - 1}", skip, "final.weight", "normed"))
    nodes.append(node("MatMul", "normed head", "logits", name="/lm_head/MatMul"))
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    stored = {name: array.astype(np.float16) if half else array for name, array in weights.items()} | numbers
    caches = [f"{{}}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        *(
            helper.make_tensor_value_info(name.format("past_key_values"), kind, ["batch", KV_HEADS, "past", HEAD])
            for name in caches
        ),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", kind, ["batch", "length", TOKENS]),
        *(
            helper.make_tensor_value_info(name.format("present"), kind, ["batch", KV_HEADS, "total", HEAD])
            for name in caches
        ),
    ]
    made = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, made)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _skip_norm(x: str, skip: str, weight: str, normed: str, total: str = "") -> onnx.NodeProto:
    outputs = [normed, "", "", total] if total else [normed]
    return helper.make_node(
        "SkipSimplifiedLayerNormalization", [x, skip, weight], outputs, f"n_{normed}", domain=MICROSOFT, epsilon=1e-5
    )


def _genai_layer(weights: dict[str, np.ndarray], layer: int, skip: str) -> Iterator[onnx.NodeProto]:
    """One layer; it gives `mid.LAYER`, the residual stream, and `mlp.LAYER`, what is to be added to it."""
    shapes = {
        "q": (WIDTH, WIDTH), "k": (WIDTH, KV_HEADS * HEAD), "v": (WIDTH, KV_HEADS * HEAD), "o": (WIDTH, WIDTH),
        "gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH),
    }  # fmt: skip
    for index, (name, shape) in enumerate(shapes.items()):
        weights[f"{name}.{layer}"] = floats(*shape, seed=10 * layer + index + 2, scale=shape[0] ** -0.5)
    for name in ("in", "post"):
        weights[f"{name}_norm.{layer}"] = 1 + floats(WIDTH, seed=layer, scale=0.2)
    if layer:
        yield _skip_norm(f"mid.{layer - 1}", skip, f"in_norm.{layer}", f"x.{layer}", f"sum.{layer}")
    else:
        yield helper.make_node(
            "SimplifiedLayerNormalization", ["h0", "in_norm.0"], ["x.0"], "n_x.0", axis=-1, epsilon=1e-5, stash_type=1
        )
    stream = f"sum.{layer}" if layer else "h0"
    for name in "qkv":
        yield node(
            "MatMul", f"x.{layer} {name}.{layer}", f"{name}_out.{layer}", name=f"/layers.{layer}/{name}_proj/MatMul"
        )
    past, present = (f"{name}.{layer}" for name in ("past_key_values", "present"))
    yield helper.make_node(
        "GroupQueryAttention",
        [f"{n}_out.{layer}" for n in "qkv"]
        + [f"{past}.key", f"{past}.value", "seqlens_k", "total", "cos_cache", "sin_cache"],
        [f"attn.{layer}", f"{present}.key", f"{present}.value"],
        f"/layers.{layer}/GroupQueryAttention",
        domain=MICROSOFT, num_heads=HEADS, kv_num_heads=KV_HEADS, scale=HEAD**-0.5, do_rotary=1, rotary_interleaved=0,
        local_window_size=-1, softcap=0.0,
    )  # fmt: skip
    yield node("MatMul", f"attn.{layer} o.{layer}", f"o_out.{layer}", name=f"/layers.{layer}/o_proj/MatMul")
    yield _skip_norm(stream, f"o_out.{layer}", f"post_norm.{layer}", f"y.{layer}", f"mid.{layer}")
    for name in ("gate", "up"):
        yield node(
            "MatMul", f"y.{layer} {name}.{layer}", f"{name}_out.{layer}", name=f"/layers.{layer}/{name}_proj/MatMul"
        )
    yield node("Sigmoid", f"gate_out.{layer}", f"sig.{layer}")
    yield node("Mul", f"gate_out.{layer} sig.{layer}", f"silu.{layer}")
    yield node("Mul", f"silu.{layer} up_out.{layer}", f"act.{layer}")
    yield node("MatMul", f"act.{layer} down.{layer}", f"mlp.{layer}", name=f"/layers.{layer}/down_proj/MatMul")


def genai_samples(
    model: onnx.ModelProto, count: int, *, length: int = 12, past: int = 0, seed: int = 0
) -> list[Mapping[str, np.ndarray]]:
    """Token ids with a mask, and caches of a length."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sample: dict[str, np.ndarray] = {
            "input_ids": rng.integers(0, TOKENS, (1, length)),
            "attention_mask": np.ones((1, past + length), np.int64),
        }
        for value in model.graph.input[2:]:
            half = value.type.tensor_type.elem_type == TensorProto.FLOAT16
            cache = rng.standard_normal((1, KV_HEADS, past, HEAD))
            sample[value.name] = cache.astype(np.float16 if half else np.float32)
        found.append(sample)
    return found


def optimum_decoder() -> onnx.ModelProto:
    """One layer as optimum exports it with a cache, of ordinary operators: keys and values concatenated, a mask."""
    weights = {
        **{name: floats(WIDTH, WIDTH, seed=index, scale=WIDTH**-0.5) for index, name in enumerate("qkvo")},
        "table": floats(TOKENS, WIDTH, seed=7), "head": floats(WIDTH, TOKENS, seed=8, scale=0.3),
        "scale": np.float32(HEAD**-0.5), "low": np.float32(-1e4), "one": np.float32(1),
        "split": np.array([0, 0, HEADS, HEAD]), "joined": np.array([0, 0, WIDTH]), "first": np.array([1]),
        "last": np.array([-1]), "axes": np.array([1, 2]), "step": np.array(1), "begin": np.array(0), "two": np.array(2),
    }  # fmt: skip
    nodes = [node("Gather", "table input_ids", "x")]
    for name in "qkv":
        nodes += [node("MatMul", f"x {name}", f"{name}p"), node("Reshape", f"{name}p split", f"{name}s")]
        nodes.append(node("Transpose", f"{name}s", f"{name}h", perm=[0, 2, 1, 3]))
    nodes += [
        node("Concat", "past_key_values.0.key kh", "present.0.key", axis=2),
        node("Concat", "past_key_values.0.value vh", "present.0.value", axis=2),
        node("Shape", "present.0.key", "key_shape"),
        node("Gather", "key_shape two", "total"),
        node("Range", "begin total step", "places"),
        node("Unsqueeze", "position_ids last", "own"),
        node("LessOrEqual", "places own", "seen"),
        node("Cast", "seen", "seenf", to=TensorProto.FLOAT),
        node("Unsqueeze", "seenf first", "seen4"),
        node("Cast", "attention_mask", "mask", to=TensorProto.FLOAT),
        node("Unsqueeze", "mask axes", "mask4"),
        node("Mul", "seen4 mask4", "both"),
        node("Sub", "one both", "hidden"),
        node("Mul", "hidden low", "bias"),
        node("Transpose", "present.0.key", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "qh kt", "raw"),
        node("Mul", "raw scale", "scaled"),
        node("Add", "scaled bias", "logit"),
        node("Softmax", "logit", "p", axis=-1),
        node("MatMul", "p present.0.value", "a"),
        node("Transpose", "a", "at", perm=[0, 2, 1, 3]),
        node("Reshape", "at joined", "aj"),
        node("MatMul", "aj o", "ao"),
        node("Add", "x ao", "h"),
        node("MatMul", "h head", "logits"),
    ]
    cache = ["batch", HEADS, "past", HEAD]
    ids = [
        ("input_ids", ["batch", "length"]),
        ("attention_mask", ["batch", "total"]),
        ("position_ids", ["batch", "length"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in ids]
    names = [f"0.{part}" for part in ("key", "value")]
    inputs += [helper.make_tensor_value_info(f"past_key_values.{n}", TensorProto.FLOAT, cache) for n in names]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", TOKENS])]
    cache = ["batch", HEADS, "all", HEAD]
    outputs += [helper.make_tensor_value_info(f"present.{n}", TensorProto.FLOAT, cache) for n in names]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
