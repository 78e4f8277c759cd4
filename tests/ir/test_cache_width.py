"""Caches whose heads and width a file leaves open get the sizes that GroupQueryAttention asks for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoders import HEAD, KV_HEADS, genai_decoder
from helpers import node

from onnxq.data.generated_text import text_input
from onnxq.data.validation import input_specs
from onnxq.ir import infer_types, parse


def opened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Give names to the sizes of caches, as onnxruntime-genai 0.18 does with their width."""
    for info in (*proto.graph.input, *proto.graph.output):
        if "key" in info.name or "value" in info.name:
            sizes = info.type.tensor_type.shape.dim
            sizes[1].dim_param, sizes[3].dim_param = "heads", "kv_cache_dim"
    return proto


def cache_sizes(proto: onnx.ModelProto) -> set[tuple]:
    model = parse(proto.SerializeToString())
    infer_types(model)
    found = [spec.shape for spec in input_specs(model) if spec.name.startswith("past")]
    return {shape[1::2] for shape in [*found, *(value.shape for value in model.graph.outputs[1:])]}


@pytest.mark.parametrize("half", [False, True])
def test_sizes_are_those_of_the_operator(half):
    assert cache_sizes(opened(genai_decoder(1, half=half))) == {(KV_HEADS, HEAD)}


def test_queries_keys_and_values_in_one():
    proto = opened(genai_decoder(1))
    attention = next(each for each in proto.graph.node if each.op_type == "GroupQueryAttention")
    place = list(proto.graph.node).index(attention)
    proto.graph.node.insert(place, node("Concat", " ".join(attention.input[:3]), "packed", axis=-1))
    attention.input[0], attention.input[1], attention.input[2] = "packed", "", ""
    assert cache_sizes(proto) == {(KV_HEADS, HEAD)}


def test_codes_may_share_a_byte():
    proto = opened(genai_decoder(1))
    attention = next(each for each in proto.graph.node if each.op_type == "GroupQueryAttention")
    attention.attribute.append(onnx.helper.make_attribute("kv_cache_bit_width", 4))
    assert cache_sizes(proto) == {("heads", "kv_cache_dim")}


def test_the_file_keeps_its_names():
    model = parse(opened(genai_decoder(1)).SerializeToString())
    infer_types(model)
    written = onnx.ModelProto.FromString(model.serialize()).graph.input[-1].type.tensor_type.shape
    assert written.dim[3].dim_param == "kv_cache_dim"


def test_a_cache_of_the_last_tokens_has_as_many_rows_as_the_window():
    proto = opened(genai_decoder(1))
    attention = next(each for each in proto.graph.node if each.op_type == "GroupQueryAttention")
    next(each for each in attention.attribute if each.name == "local_window_size").i = 6
    attention.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    model = parse(proto.SerializeToString())
    infer_types(model)
    found = text_input(model)
    assert found is not None
    feeds = found.feeds(np.zeros((2, 3), np.int64), 64)
    assert [feeds[value.name].shape for value in found.caches] == [(2, KV_HEADS, 6, HEAD)] * 2
    assert feeds["attention_mask"].shape == (2, 67)
