"""Decoders generate the sequences that they are calibrated on, the same ones whatever drafts them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq import evaluate
from onnxq.data import generated_text as module
from onnxq.data.generated_text import drafted_text, generated_text, text_input
from onnxq.ir import infer_types, parse

TOKENS, WIDTH, LENGTH = 24, 16, 12
OF_USERS = module.MOST_SEQUENCES


@pytest.fixture(autouse=True)
def all_texts(monkeypatch) -> None:
    """Write all texts, unlike other tests."""
    monkeypatch.setattr(module, "MOST_SEQUENCES", OF_USERS)


def decoder(*, causal=True, length=LENGTH, extra=(), batch="batch", cast=False):
    """A table of tokens, a sum over all places so far, and a head."""
    weights = {"table": floats(TOKENS, WIDTH, seed=1), "head": floats(WIDTH, TOKENS, seed=2)}
    mixing = np.tril(np.ones((LENGTH, LENGTH), np.float32)) if causal else np.ones((LENGTH, LENGTH), np.float32)
    weights["mixing"] = mixing / LENGTH
    nodes = [node("Gather", "table ids", "e"), node("MatMul", "mixing e", "h"), node("MatMul", "h head", "logits")]
    if not isinstance(length, int):  # each place by itself
        nodes = [node("Gather", "table ids", "e"), node("MatMul", "e head", "logits")]
        del weights["mixing"]
    if cast:
        nodes = [node("Cast", "ids", "wide", to=TensorProto.INT64), node("Gather", "table wide", "e"), *nodes[1:]]
    kind = TensorProto.INT32 if cast else TensorProto.INT64
    inputs = [helper.make_tensor_value_info("ids", kind, [batch, length])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length]) for name in extra]
    if extra:
        nodes.insert(1, node("Cast", extra[0], "m", to=TensorProto.FLOAT))
        nodes.insert(2, node("Identity", "m", "unused"))
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, length, TOKENS])
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model


@pytest.mark.parametrize("length", [LENGTH, "length"])
def test_a_decoder_writes_sequences_of_its_own_tokens(length):
    made = generated_text(decoder(length=length))
    assert len(made) == module.MOST_SEQUENCES
    ids = np.concatenate([sample["ids"] for sample in made])
    assert ids.dtype == np.int64
    assert ids.shape[1] == (LENGTH if length == LENGTH else module.LENGTH)
    assert ids.min() >= 0
    assert ids.max() < TOKENS
    assert len(np.unique(ids, axis=0)) == len(ids)


@pytest.mark.parametrize("length", [LENGTH, "length"])
def test_drafts_become_what_is_written_one_by_one(length, monkeypatch):
    model = decoder(length=length)
    monkeypatch.setattr(module, "LENGTH", LENGTH)
    monkeypatch.setattr(module, "LOGITS", 5 * LENGTH * TOKENS)
    expected = [sample["ids"] for sample in generated_text(model)]
    few, passes = [sample["ids"] for sample in drafted_text(model)], module.PASSES
    monkeypatch.setattr(module, "PASSES", LENGTH)
    found = [sample["ids"] for sample in drafted_text(model)]
    np.testing.assert_array_equal(found, expected)
    assert np.mean(np.array(few) == np.array(expected)) > passes / LENGTH


@pytest.mark.parametrize("length", [LENGTH, "length"])
@pytest.mark.parametrize("write", [generated_text, drafted_text])
def test_a_batch_of_one_writes_the_same(length, write, monkeypatch):
    monkeypatch.setattr(module, "LENGTH", LENGTH)
    expected = [sample["ids"] for sample in write(decoder(length=length))]
    found = [sample["ids"] for sample in write(decoder(length=length, batch=1))]
    assert found
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("write", [generated_text, drafted_text])
def test_an_open_batch_may_be_stated_where_only_one_row_runs(write, monkeypatch):
    expected, run, given = [sample["ids"] for sample in write(decoder())], module.run_session, []

    def single(session, names, feeds):
        given.append(len(feeds["ids"]))
        if given[-1] > 1:
            raise module.SessionError("tables have one row")
        return run(session, names, feeds)

    monkeypatch.setattr(module, "run_session", single)
    np.testing.assert_array_equal([sample["ids"] for sample in write(decoder())], expected)
    assert set(given) == {1, module.MOST_SEQUENCES}


def test_a_model_that_runs_nothing_writes_nothing(monkeypatch):
    def fails(*given):
        raise module.SessionError("it is broken")

    monkeypatch.setattr(module, "run_session", fails)
    assert not generated_text(decoder())
    assert not drafted_text(decoder())


def test_a_larger_model_drafts_fewer_sequences(monkeypatch):
    model = decoder()
    monkeypatch.setattr(module, "PRODUCTS", 20.5 * module.PASSES * LENGTH * model.weight_bytes // 4)
    assert len(drafted_text(model)) == 20
    monkeypatch.setattr(module, "PRODUCTS", 0)
    assert len(drafted_text(model)) == module.FEWEST_SEQUENCES


@pytest.mark.parametrize("write", [generated_text, drafted_text])
def test_what_is_likely_is_written_often(write):
    model = decoder(length="length")
    ids = np.concatenate([sample["ids"] for sample in write(model)])
    logits = evaluate(model, {"ids": ids})["logits"].astype(np.float64)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    written = np.bincount(ids[:, 1:].ravel(), minlength=TOKENS) / ids[:, 1:].size
    expected = chances[:, :-1].mean(axis=(0, 1))
    assert np.abs(written - expected).sum() < 0.1


def test_wrong_drafts_change_no_token(monkeypatch):
    model, run = decoder(), module.run_session
    expected = [sample["ids"] for sample in generated_text(model)]

    def other(session, names, feeds):
        (logits,) = run(session, names, feeds)
        ids = feeds["ids"]
        return [logits + 3 * ((ids.sum() + np.arange(TOKENS)) % 97 == 0)]

    monkeypatch.setattr(module, "run_session", other)
    monkeypatch.setattr(module, "ROUNDS", 200)
    found = [sample["ids"] for sample in generated_text(model)]
    np.testing.assert_array_equal(found, expected)


def test_ids_of_32_bits_are_found_behind_their_cast():
    assert [sample["ids"].dtype for sample in generated_text(decoder(cast=True))[:1]] == [np.int32]


def test_other_models_write_nothing():
    assert not generated_text(decoder(causal=False))
    assert not drafted_text(decoder(causal=False))
    assert not drafted_text(decoder(batch=4))
    broken = decoder()
    broken.graph.nodes[0].op_type = "Nonsense"
    assert not drafted_text(broken)
    assert text_input(decoder(batch=4)) is None
    assert text_input(decoder(extra=("segments",))) is None
    found = text_input(decoder(extra=("attention_mask",)))
    assert found is not None
    assert [value.name for value in found.others] == ["attention_mask"]
    np.testing.assert_array_equal(found.feeds(np.zeros((2, 3), np.int64))["attention_mask"], np.ones((2, 3)))
