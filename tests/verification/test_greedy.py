"""Greedy decoding along the float model's own text, against a table of next tokens worked out here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

from onnxq import measure_metric
from onnxq.data.samples import InputSpec, wrap_samples
from onnxq.errors import DataError
from onnxq.verification.metrics.greedy import BEGINS, CONTINUED, PROMPT, continue_texts
from onnxq.verification.user_metric import compare_metric

INT64, TOKENS = 7, 40
TABLE = floats(TOKENS, TOKENS, seed=3)
IDS = np.arange(3)[:, None] + np.arange(40)[None] % 7


def follows(table: np.ndarray, length: int | str = "length") -> bytes:
    """A model whose next token depends on the last one alone."""
    made = build([node("Gather", "t ids", "logits")], {"ids": (INT64, [1, length])}, ["logits"], {"t": table})
    return bytes(made.SerializeToString())


def samples(ids: np.ndarray = IDS, length: int | str = "length", **others: np.ndarray):
    specs = [InputSpec("ids", INT64, (1, length)), *(InputSpec(name, INT64, (1, "all")) for name in others)]
    return wrap_samples(
        [{"ids": row[None], **{n: a[at][None] for n, a in others.items()}} for at, row in enumerate(ids)], specs
    )


@pytest.mark.parametrize("length", ["length", 40])
def test_it_is_the_share_of_equal_choices_along_the_text(length: int | str) -> None:
    other = TABLE.copy()
    changed = np.arange(0, TOKENS, 3)
    other[changed] = np.roll(other[changed], 1, axis=1)
    begin = PROMPT if length == "length" else 20
    count = CONTINUED if length == "length" else 21
    alike = []
    for row in IDS:
        token = row[begin - 1]
        for _ in range(count):
            alike.append(TABLE[token].argmax() == other[token].argmax())
            token = TABLE[token].argmax()
    given = samples(length=length)
    found = compare_metric("greedy", follows(TABLE, length), follows(other, length), given)
    assert (found.float_value, found.quantized_value) == (100, pytest.approx(100 * np.mean(alike)))
    assert 0 < found.quantized_value < 100
    assert measure_metric("greedy", follows(other, length), given) == 100
    same = measure_metric("greedy", follows(other, length), given, float_model=follows(TABLE, length))
    assert same == found.quantized_value


def test_masks_and_places_grow_with_the_text() -> None:
    mask = np.ones((3, 45), np.int64)  # five places of a cache
    mask[:, :2] = 0
    places = np.arange(5, 45)[None].repeat(3, axis=0)
    given = samples(attention_mask=mask, position_ids=places, token_type_ids=np.ones((3, 40), np.int64))
    seen = []

    def run(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append({name: array.shape[1] for name, array in sample.items()})
        return {"other": np.zeros((1, 3, 5), np.float32), "logits": TABLE[sample["ids"]]}

    texts, labels = continue_texts(given, given.inputs, run)
    assert seen[0] == {"ids": PROMPT, "attention_mask": PROMPT + 5, "position_ids": PROMPT, "token_type_ids": PROMPT}
    last = texts[0]
    assert last["ids"].shape == (1, PROMPT + CONTINUED - 1)
    np.testing.assert_array_equal(last["attention_mask"][0], [0, 0, *[1] * (last["ids"].shape[1] + 3)])
    np.testing.assert_array_equal(last["position_ids"][0], np.arange(5, 5 + last["ids"].shape[1]))
    assert last["token_type_ids"].all()
    assert [list(one) for one in labels[BEGINS]] == [[PROMPT - 1, PROMPT + CONTINUED - 1]] * 3


def test_models_without_tokens_or_logits_are_refused() -> None:
    with pytest.raises(DataError, match="needs one input of token ids, and no input could be it"):
        measure_metric("greedy", follows(TABLE), wrap_samples([{"x": np.zeros((1, 4))}], [InputSpec("x", 1, (1, 4))]))
    twice = [InputSpec("a", INT64, (1, 4)), InputSpec("b", INT64, (1, 4))]
    with pytest.raises(DataError, match="'a', 'b' could be it"):
        measure_metric("greedy", follows(TABLE), wrap_samples([{"a": IDS[:1, :4], "b": IDS[:1, :4]}], twice))
    model = build([node("Cast", "ids", "y", to=1)], {"ids": (INT64, [1, "length"])}, ["y"]).SerializeToString()
    with pytest.raises(DataError, match=r"greedy needs logits \[batch, length, tokens\]"):
        measure_metric("greedy", model, samples())


def test_verify_shows_it(tmp_path: Path) -> None:
    import onnxq

    for name, table in (("f", TABLE), ("q", TABLE + floats(TOKENS, TOKENS, scale=0.01))):
        onnx.save(onnx.ModelProto.FromString(follows(table)), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "d.npz", ids=IDS)
    found = onnxq.verify(tmp_path / "q.onnx", tmp_path / "f.onnx", data=tmp_path / "d.npz", metric="greedy", max_drop=0)
    assert found.comparison is not None
    metric = found.comparison.metric
    assert metric is not None
    assert (metric.name, metric.float_value) == ("greedy", 100)
