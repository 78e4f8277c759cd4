"""Caches of keys and values as int8 codes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoders import HEAD, KV_HEADS, genai_decoder, genai_samples
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import encode_proto, parse
from onnxq.lowering.coded_caches import (
    PASTS,
    SCALES,
    cached_attentions,
    code_caches,
    coded_attentions,
    with_float_caches,
)

CACHES = [f"present.{layer}.{part}" for layer in range(2) for part in ("key", "value")]


def scales() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.uniform(0.02, 0.05, (1, KV_HEADS, 1, HEAD)).astype(np.float32) for name in CACHES}


def coded(proto: onnx.ModelProto):
    return code_caches(parse(encode_proto(proto)), scales())


def session(encoded: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(encoded, providers=["CPUExecutionProvider"])


def test_inputs_and_outputs_hold_codes() -> None:
    made = coded(genai_decoder())
    run = session(made.serialize())
    assert {one.type for one in run.get_inputs()[2:]} == {"tensor(int8)"}
    assert {one.type for one in run.get_outputs()[1:]} == {"tensor(int8)"}
    assert [one.name for one in run.get_outputs()] == ["logits", *CACHES]
    assert len(coded_attentions(made)) == 2
    assert not cached_attentions(made)


@pytest.mark.parametrize("past", [0, 6])
def test_codes_are_what_the_float_model_gives_over_the_scales(past: int) -> None:
    proto = genai_decoder(1)
    sample = dict(genai_samples(proto, 1, length=5, past=past)[0])
    before = session(proto.SerializeToString()).run(None, sample)
    wide = scales()
    for index, name in enumerate(list(sample)[2:]):
        scale = wide[CACHES[index]]
        sample[name] = np.clip(np.rint(sample[name] / scale), -128, 127).astype(np.int8)
    after = session(code_caches(parse(encode_proto(proto)), wide).serialize()).run(None, sample)
    for name, floats, codes in zip(CACHES, before[1:], after[1:], strict=False):
        limited = np.clip(floats, -128 * wide[name], 127 * wide[name])
        assert np.abs(codes * wide[name] - limited).max() <= 0.5001 * wide[name].max()
    assert np.abs(after[0] - before[0]).max() < 0.1 * np.abs(before[0]).max()


def test_a_model_with_float_caches_outside_computes_the_same() -> None:
    made = coded(genai_decoder())
    floats = with_float_caches(made)
    sample = dict(genai_samples(genai_decoder(), 1, length=3, past=4)[0])
    codes = dict(sample)
    for name, value in zip(CACHES, list(sample)[2:], strict=True):
        codes[value] = np.clip(np.rint(sample[value] / scales()[name]), -128, 127).astype(np.int8)
    one, two = session(made.serialize()).run(None, codes), session(floats.serialize()).run(None, sample)
    assert np.array_equal(one[0], two[0])
    for name, given, wide in zip(CACHES, one[1:], two[1:], strict=True):
        assert np.array_equal(given * scales()[name], wide)
    assert coded_attentions(made), "the model itself stays as it is"
    assert with_float_caches(floats) is floats


def test_without_scales_nothing_changes() -> None:
    proto = genai_decoder()
    model = parse(encode_proto(proto))
    before = model.serialize()
    assert code_caches(model, {}).serialize() == before
    assert with_float_caches(model) is model


def test_caches_that_others_read_stay_float() -> None:
    proto = genai_decoder()
    proto.graph.node.append(helper.make_node("ReduceMax", ["past_key_values.0.key"], ["most"], keepdims=0))
    proto.graph.output.append(helper.make_tensor_value_info("most", TensorProto.FLOAT, []))
    (left,) = cached_attentions(parse(encode_proto(proto)))
    assert left.presents[0].name == "present.1.key"


def test_one_scale_of_a_tensor_is_left_to_its_owner() -> None:
    made = onnx.load_from_string(coded(genai_decoder()).serialize())
    node = next(one for one in made.graph.node if one.op_type == "GroupQueryAttention")
    for attribute in node.attribute:
        if attribute.name.endswith("_quant_type"):
            attribute.s = b"PER_TENSOR"
    for tensor in made.graph.initializer:
        if tensor.name in [node.input[slot] for slot in SCALES]:
            tensor.CopyFrom(numpy_helper.from_array(np.array([0.03], np.float32), tensor.name))
    model = parse(encode_proto(made))
    assert len(coded_attentions(model)) == 1
    assert [value.name for value in model.graph.inputs if value.name in [node.input[slot] for slot in PASTS]]
