"""Sentences, a tokenizer trained in memory, and small encoders and decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TEXT = "the a cat dog bird sees hears likes small large red green house tree river and or not very fast slow"
WORDS = TEXT.split()
VOCABULARY = 64


def sentences(count: int = 24, seed: int = 0, least: int = 3, most: int = 9) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(least, most))) for _ in range(count)]


def save_tokenizer(folder: Path, *, longest: int | None = 32, pad: bool = True) -> Path:
    """A tokenizer of whole words, as BERT has its own around them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    if pad:
        made.enable_padding(length=30)  # as files of sentence-transformers have it, and we do it ourselves
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if longest is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": longest}))
    return folder / "tokenizer.json"


def _weights(names: dict[str, tuple[int, ...]], seed: int = 3) -> list[onnx.TensorProto]:
    generator = np.random.default_rng(seed)
    made = {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in names.items()}
    return [numpy_helper.from_array(array, name) for name, array in made.items()]


def save_model(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def encoder(path: Path, batch: Any = "batch", length: Any = "length", width: int = 16) -> Path:
    """An embedding, a product, a mean under the mask, and four classes."""
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length]) for name in ENCODER_INPUTS]
    weights = _weights({"e": (VOCABULARY, width), "t": (2, width), "w": (width, 32), "v": (32, 4)})
    weights += [numpy_helper.from_array(np.array([2]), "last"), numpy_helper.from_array(np.array([1]), "axis")]
    nodes = [
        helper.make_node("Gather", ["e", "input_ids"], ["words"]),
        helper.make_node("Gather", ["t", "token_type_ids"], ["types"]),
        helper.make_node("Add", ["words", "types"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["mm"]),
        helper.make_node("Mul", ["r", "mm"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["m", "axis"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["mean"]),
        helper.make_node("MatMul", ["mean", "v"], ["logits"]),
    ]
    out = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 4])]
    return save_model(path, nodes, ids, out, weights)


ENCODER_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def decoder(path: Path, width: int = 16, places: int = 64) -> Path:
    """One key and value cache that grows by concatenation, attention over it, and logits."""
    cache = ["batch", 1, "past", width]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "length"]),
        helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, cache),
        helper.make_tensor_value_info("past_key_values.0.value", TensorProto.FLOAT, cache),
    ]
    weights = _weights(
        {
            "e": (VOCABULARY, width),
            "p": (places, width),
            "k": (width, width),
            "q": (width, width),
            "o": (width, VOCABULARY),
        }
    )
    weights += [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array([1, 2]), "masked")]
    nodes = [
        helper.make_node("Gather", ["e", "input_ids"], ["words"]),
        helper.make_node("Gather", ["p", "position_ids"], ["places"]),
        helper.make_node("Add", ["words", "places"], ["x"]),
        helper.make_node("MatMul", ["x", "k"], ["keys"]),
        helper.make_node("MatMul", ["x", "q"], ["queries"]),
        helper.make_node("Unsqueeze", ["keys", "one"], ["keys4"]),
        helper.make_node("Unsqueeze", ["x", "one"], ["values4"]),
        helper.make_node("Unsqueeze", ["queries", "one"], ["queries4"]),
        helper.make_node("Concat", ["past_key_values.0.key", "keys4"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "values4"], ["present.0.value"], axis=2),
        helper.make_node("Transpose", ["present.0.key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["queries4", "turned"], ["scores"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "masked"], ["mm"]),
        helper.make_node("Mul", ["scores", "mm"], ["seen"]),
        helper.make_node("Softmax", ["seen"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "present.0.value"], ["mixed"]),
        helper.make_node("Squeeze", ["mixed", "one"], ["flat"]),
        helper.make_node("MatMul", ["flat", "o"], ["logits"]),
    ]
    grown = ["batch", 1, "total", width]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY]),
        helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, grown),
        helper.make_tensor_value_info("present.0.value", TensorProto.FLOAT, grown),
    ]
    return save_model(path, nodes, inputs, outputs, weights)
