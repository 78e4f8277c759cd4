"""Operators of decoders that onnxruntime alone has give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import MICROSOFT, genai_decoder, genai_samples
from helpers import floats
from onnx import helper

from onnxq import evaluate
from onnxq.evaluator import Evaluator
from onnxq.ops.kernels import onnxruntime_decoder

FLOAT, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT8


def both(op_type, inputs, outputs=1, domain=MICROSOFT, **attributes):
    """Run an operator in onnxruntime and here; None is an absent input, `outputs` their number or their types."""
    types = (FLOAT,) * outputs if isinstance(outputs, int) else outputs
    names = [f"i{slot}" if array is not None else "" for slot, array in enumerate(inputs)]
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if name}
    node = helper.make_node(op_type, names, [f"o{slot}" for slot in range(len(types))], domain=domain, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in feeds.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(node.output, types, strict=True)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert Evaluator(model).has_kernels(node.output)
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return run.run(None, feeds), list(evaluate(model, feeds).values())


def close(pair):
    for expected, found in zip(*pair, strict=True):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


COS, SIN = np.cos(floats(20, 4, seed=8)), np.sin(floats(20, 4, seed=8))


def test_rms_normalization():
    x, scale = floats(2, 3, 8), floats(8, seed=1)
    close(both("SimplifiedLayerNormalization", [x, scale], domain="", axis=-1, epsilon=1e-5))


@pytest.mark.parametrize("bias", [False, True])
def test_normalization_of_a_sum(bias):
    inputs = [floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8, seed=2)]
    more = [floats(8, seed=3)] if bias else []
    close(both("SkipSimplifiedLayerNormalization", inputs + more, epsilon=1e-5))
    close(both("SkipLayerNormalization", [*inputs, floats(8, seed=4), *more], epsilon=1e-5))


def test_gelu_in_its_forms():
    x, bias = floats(2, 3, 8, scale=3), floats(8, seed=1)
    close(both("Gelu", [x]))
    close(both("BiasGelu", [x, bias]))
    close(both("FastGelu", [x]))
    close(both("FastGelu", [x, bias]))


@pytest.mark.parametrize("settings", [{}, {"transBatchA": 1, "transBatchB": 1}, {"transA": 1, "transBatchB": 1}])
def test_products_of_stacks(settings):
    left = {(0, 0): (2, 3, 4, 5), (1, 0): (2, 3, 5, 4), (0, 1): (4, 2, 3, 5)}
    right = {0: (2, 3, 5, 6), 1: (5, 2, 3, 6)}
    turned = settings.get("transA", 0), settings.get("transBatchA", 0)
    a, b = floats(*left[turned]), floats(*right[settings.get("transBatchB", 0)], seed=1)
    close(both("FusedMatMul", [a, b], alpha=0.5, **settings))
    close(both("FusedMatMul", [floats(4, 5), floats(6, 5, seed=1)], transB=1))


@pytest.mark.parametrize("past", [0, 5])
def test_a_sink_of_each_head_takes_a_share(past):
    heads, kv_heads, size, length = 4, 2, 16, 3
    q, k, v = floats(1, length, heads * size), *(floats(1, length, kv_heads * size, seed=s) for s in (1, 2))
    caches = [floats(1, kv_heads, past, size, seed=s) for s in (3, 4)]
    lengths = np.full((1,), past + length - 1, np.int32)
    inputs = [
        q,
        k,
        v,
        *caches,
        lengths,
        np.array(past + length, np.int32),
        None,
        None,
        None,
        None,
        floats(heads, seed=9),
    ]
    close(both("GroupQueryAttention", inputs, 3, num_heads=heads, kv_num_heads=kv_heads))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", [np.array([3]), np.array([[3, 4, 5], [0, 1, 2]])])
def test_rotary_embedding(interleaved, places):
    for x in (floats(2, 3, 16), floats(2, 2, 3, 8)):
        close(both("RotaryEmbedding", [x, places, COS, SIN], interleaved=interleaved))


@pytest.mark.parametrize(("past", "batch", "length"), [(0, 2, 3), (5, 1, 3), (5, 2, 1)])
@pytest.mark.parametrize(
    "more",
    [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"local_window_size": 2}, {"softcap": 2.0}],
)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(past, batch, length, more, packed):
    heads, kv_heads, size = 4, 2, 16
    q, k, v = floats(batch, length, heads * size), *(floats(batch, length, kv_heads * size, seed=s) for s in (1, 2))
    caches = [floats(batch, kv_heads, past, size, seed=s) for s in (3, 4)]
    lengths = np.full((batch,), past + length - 1, np.int32)
    tables = [make(floats(20, size // 2, seed=8)) for make in (np.cos, np.sin)]
    inputs = [np.concatenate([q, k, v], axis=-1), None, None] if packed else [q, k, v]
    inputs += [*caches, lengths, np.array(past + length, np.int32), *tables]
    close(both("GroupQueryAttention", inputs, 3, num_heads=heads, kv_num_heads=kv_heads, **more))


@pytest.mark.parametrize(("window", "rows"), [(4, 4), (4, 7), (3, 16)])
@pytest.mark.parametrize("steps", [(9,), (3, 1, 1, 1, 1, 1), (2, 6, 1), (5, 5, 5)])
@pytest.mark.parametrize("kind", ["NONE", "PER_TENSOR"])
def test_a_cache_of_the_last_tokens(window, rows, steps, kind):
    heads, kv_heads, size = 4, 2, 16
    coded = kind != "NONE"
    caches = [np.zeros((1, kv_heads, rows, size), np.int8 if coded else np.float32)] * 2
    scales = [np.array([0.02], np.float32)] * 2 if coded else []
    tables = [make(floats(20, size // 2, seed=8)) for make in (np.cos, np.sin)]
    kinds = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8} if coded else {}
    given = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "local_window_size": window, **kinds}
    total = 0
    for seed, length in enumerate(steps):
        q = floats(1, length, heads * size, seed=seed)
        k, v = (floats(1, length, kv_heads * size, seed=seed + 10 * which) for which in (1, 2))
        total += length
        lengths = np.array([total - 1], np.int32), np.array(total, np.int32)
        inputs = [q, k, v, *caches, *lengths, *tables, *([None] * 3 + scales if coded else [])]
        types = (FLOAT, INT8, INT8) if coded else 3
        theirs, ours = both("GroupQueryAttention", inputs, types, sliding_window_cache=1, **given)
        held = onnxruntime_decoder.held_rows(total, rows, window)
        close((theirs[:1], ours[:1]))
        close(([one[:, :, :held] for one in theirs[1:]], [one[:, :, :held] for one in ours[1:]]))
        caches = theirs[1:]


@pytest.mark.parametrize(("past", "batch", "length"), [(0, 2, 3), (5, 1, 3), (5, 2, 1)])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_group_query_attention_with_codes_in_its_cache(past, batch, length, kind):
    heads, kv_heads, size = 4, 2, 16
    q, k, v = floats(batch, length, heads * size), *(floats(batch, length, kv_heads * size, seed=s) for s in (1, 2))
    rng = np.random.default_rng(0)
    caches = [rng.integers(-128, 128, (batch, kv_heads, past, size)).astype(np.int8) for _ in range(2)]
    scales = rng.uniform(0.01, 0.03, (1,) if kind == "PER_TENSOR" else (1, kv_heads, 1, size)).astype(np.float32)
    lengths, total = np.full((batch,), past + length - 1, np.int32), np.array(past + length, np.int32)
    tables = [make(floats(20, size // 2, seed=8)) for make in (np.cos, np.sin)]
    inputs = [q, k, v, *caches, lengths, total, *tables, None, None, None, scales, scales]
    kinds = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}
    given = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, **kinds}
    theirs, ours = both("GroupQueryAttention", inputs, (FLOAT, INT8, INT8), **given)
    close((theirs[:1], ours[:1]))
    for their, own in zip(theirs[1:], ours[1:], strict=True):
        assert np.array_equal(their, own)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, 4])
def test_multi_head_attention(unidirectional, past):
    heads, size = 2, 8
    q, k, v = (floats(2, 3, heads * size, seed=s) for s in range(3))
    bias = floats(3 * heads * size, seed=5)
    inputs = [q, k, v, bias, None, floats(2, heads, 3, 3 + past, seed=9)]
    inputs += [floats(2, heads, past, size, seed=s) for s in (6, 7)] if past else []
    close(both("MultiHeadAttention", inputs, 3, num_heads=heads, unidirectional=unidirectional))


def test_attention_to_an_encoder_and_its_padding():
    q, k, v = floats(2, 3, 16), floats(2, 2, 6, 8, seed=1), floats(2, 2, 6, 8, seed=2)
    close(both("MultiHeadAttention", [q, k, v], num_heads=2))
    q, k, v = (floats(2, 3, 16, seed=s) for s in range(3))
    for mask in (np.array([[1, 1, 0], [1, 1, 1]], np.int32), np.array([2, 3], np.int32)):
        close(both("MultiHeadAttention", [q, k, v, None, mask], num_heads=2))


@pytest.mark.parametrize("past", [0, 6])
def test_a_whole_decoder_of_the_builder(past):
    model = genai_decoder()
    for sample in genai_samples(model, 2, length=5, past=past):
        expected = ort.InferenceSession(model.SerializeToString()).run(None, sample)
        for found, wanted in zip(evaluate(model, sample).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_absent_inputs_at_the_end_are_as_good_as_left_out():
    close(both("SkipSimplifiedLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8), floats(8), None], epsilon=1e-5))
    x, scale = floats(2, 3, 8), floats(8, seed=1)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("SimplifiedLayerNormalization", ["x", "scale", "", ""], ["y"], epsilon=1e-5)],
            "g",
            [helper.make_tensor_value_info(name, FLOAT, None) for name in ("x", "scale")],
            [helper.make_tensor_value_info("y", FLOAT, None)],
        )
    )
    assert evaluate(model, {"x": x, "scale": scale})["y"].shape == x.shape
