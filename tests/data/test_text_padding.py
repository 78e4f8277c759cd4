"""Token ids that are filled up where the mask says text."""

import numpy as np
import pytest
from onnx import parser

from onnxq.data.text.padding import padding_warnings
from onnxq.ir import parse

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[n, m] ids, int64[n, m] attention_mask) => (float[n, m, 2] y) <float[64, 2] table> {
  words = Gather(table, ids)
  shown = Cast<to: int = 1>(attention_mask)
  axis = Constant<value_ints: ints = [2]>()
  factors = Unsqueeze(shown, axis)
  y = Mul(words, factors)
}"""
RANDOM = np.random.default_rng(0)
TEXT = RANDOM.integers(5, 60, (8, 12))
LENGTHS = np.array([4, 6, 8, 12, 5, 7, 9, 11])
SHOWN = (np.arange(12) < LENGTHS[:, None]).astype(np.int64)
ENDED = np.where(SHOWN > 0, TEXT, 1)


def said(ids: np.ndarray, mask: np.ndarray) -> list[str]:
    proto = parser.parse_model(MODEL.replace("<float[64, 2] table>", ""))
    table = proto.graph.initializer.add()
    table.name, table.data_type, table.raw_data = "table", 1, np.zeros((64, 2), np.float32).tobytes()
    table.dims.extend((64, 2))
    samples = [{"ids": row[None], "attention_mask": shown[None]} for row, shown in zip(ids, mask, strict=True)]
    return [str(warning) for warning in padding_warnings(parse(proto.SerializeToString()), samples)]


@pytest.mark.parametrize("turn", [1, -1], ids=["at the end", "at the start"])
def test_padding_that_the_mask_shows_is_named(turn: int) -> None:
    (found,) = said(ENDED[:, ::turn], np.ones_like(SHOWN))
    assert found.startswith("rows of 'ids' are filled up with 1, and 'attention_mask' is not 0 there")


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        (ENDED, SHOWN),  # as a tokenizer gives it
        (TEXT, np.ones_like(SHOWN)),  # no padding
        (np.where(np.arange(12) < 8, TEXT, 1), np.ones_like(SHOWN)),  # an end that all have
        (np.concatenate([ENDED[:, :2] * 0 + 1, ENDED[:, 2:]], 1), np.ones_like(SHOWN)),  # an id that stands elsewhere
        (ENDED[:3], np.ones_like(SHOWN[:3])),  # too few to tell
        (np.ones_like(ENDED), np.ones_like(SHOWN)),  # constants, of which another warning tells
    ],
    ids=["masked", "full", "same", "elsewhere", "few", "constant"],
)
def test_all_else_is_not(ids: np.ndarray, mask: np.ndarray) -> None:
    assert said(ids, mask) == []


def test_text_that_the_mask_hides_is_named() -> None:
    (found,) = said(ENDED, SHOWN[::-1])
    assert found.startswith("'attention_mask' hides ")
    assert "different numbers of 'ids', and padding is one number (hidden-tokens)" in found
    assert said(np.where(SHOWN > 0, TEXT, RANDOM.integers(0, 3, TEXT.shape)), SHOWN) == []  # three kinds of padding
    assert said(ENDED, np.zeros_like(SHOWN)) == []  # told by another warning
    assert "hidden-tokens" not in " ".join(said(ENDED, 1 - SHOWN))  # a mask of padding
