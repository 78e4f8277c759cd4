"""Token ids that a language model expects less than a guess does are those of another tokenizer."""

import numpy as np
import pytest
from onnx import parser

from onnxq.data.examine import examine
from onnxq.ir import Model, parse

VOCABULARY = 24
NEXT = np.roll(np.eye(VOCABULARY, dtype=np.float32) * 9, 1, axis=1)  # token 5 is followed by 6


def decoder(table: np.ndarray = NEXT, mask: bool = False) -> Model:
    """A model whose scores at each place are a row of the table."""
    ends = "int64[n, m] ids, int64[n, m] attention_mask" if mask else "int64[n, m] ids"
    more = "shown = Cast<to: int = 1>(attention_mask)" if mask else ""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({ends}) => (float[n, m, {VOCABULARY}] logits) {{ logits = Gather(table, ids) {more} }}"""
    proto = parser.parse_model(text)
    weight = proto.graph.initializer.add()
    weight.name, weight.data_type, weight.raw_data = "table", 1, table.tobytes()
    weight.dims.extend(table.shape)
    return parse(proto.SerializeToString())


def texts(step: int = 1, count: int = 20) -> list[dict[str, np.ndarray]]:
    starts = np.random.default_rng(0).integers(0, VOCABULARY, count)
    return [{"ids": (start + step * np.arange(8))[None] % VOCABULARY} for start in starts]


def codes(model: Model, samples: list[dict[str, np.ndarray]]) -> list[str]:
    return [one.code for one in examine(model, samples).warnings if one.code == "unexpected-tokens"]


def test_texts_of_training_are_expected() -> None:
    assert codes(decoder(), texts()) == []


@pytest.mark.parametrize("step", [2, -1, 7])
def test_ids_in_another_order_are_named(step: int) -> None:
    assert codes(decoder(), texts(step)) == ["unexpected-tokens"]


def test_tokens_that_stand_there_are_expected_by_a_masked_model() -> None:
    assert codes(decoder(np.eye(VOCABULARY, dtype=np.float32) * 9), texts(7)) == []


def test_a_model_that_has_learnt_nothing_says_nothing() -> None:
    noise = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    assert codes(decoder(noise), texts(7)) == []


def test_padding_does_not_count() -> None:
    padded = [
        {"ids": np.pad(one["ids"], ((0, 0), (0, 40))), "attention_mask": np.arange(48)[None] // 8 == 0}
        for one in texts()
    ]
    shown = [{**one, "attention_mask": one["attention_mask"].astype(np.int64)} for one in padded]
    assert codes(decoder(mask=True), shown) == []


def test_few_tokens_are_not_judged() -> None:
    assert codes(decoder(), [{"ids": one["ids"][:, :3]} for one in texts(7)]) == []
