"""Random numbers in place of pictures are told from everything that pictures are."""

import numpy as np
import pytest
from onnx import parser

from onnxq.data.examine import examine
from onnxq.ir import parse

RANDOM = np.random.default_rng(0)
SMOOTH = np.cumsum(np.cumsum(RANDOM.normal(size=(20, 3, 24, 24)), -1), -2)


def codes(arrays: np.ndarray, name: str = "x") -> list[str]:
    shape = ", ".join(str(size) for size in arrays.shape[1:])
    graph = f"g (float[n, {shape}] {name}) => (float[n, {shape}] y) {{ y = Neg({name}) }}"
    text = f'<ir_version: 8, opset_import: ["" : 17]> {graph}'
    model = parse(parser.parse_model(text).SerializeToString())
    return [
        warning.code for warning in examine(model, [{name: row[None].astype(np.float32)} for row in arrays]).warnings
    ]


@pytest.mark.parametrize(
    "arrays",
    [
        RANDOM.random((20, 3, 24, 24)),
        RANDOM.normal(size=(20, 1, 16, 32)),
        RANDOM.integers(0, 256, (20, 24, 24, 3)).astype(float),
    ],
    ids=["uniform", "normal", "bytes"],
)
def test_random_numbers_are_named(arrays: np.ndarray) -> None:
    assert codes(arrays) == ["random-values"]


@pytest.mark.parametrize(
    "arrays",
    [
        SMOOTH,
        SMOOTH + 0.7 * SMOOTH.std() * RANDOM.normal(size=SMOOTH.shape),  # a noisy photo
        RANDOM.random((20, 3, 8, 8)),  # too small to tell
        RANDOM.random((20, 6, 24, 24)),  # no channels of pictures
        RANDOM.integers(0, 9, (20, 1, 24, 24)).astype(float),  # a map of codes
        np.repeat(RANDOM.random((20, 1, 24, 24)), 2, axis=-1),  # neighbours in one direction
    ],
    ids=["smooth", "noisy", "small", "channels", "codes", "stripes"],
)
def test_all_else_is_not(arrays: np.ndarray) -> None:
    assert "random-values" not in codes(arrays)


def colours(count: int = 12, channels: int = 3, side: int = 24) -> np.ndarray:
    """Smooth pictures whose channels differ by more than neighbours do."""
    return SMOOTH[:count, :1, :side, :side] + 40 * np.arange(channels).reshape(1, -1, 1, 1)


@pytest.mark.parametrize("channels", [3, 4])
def test_pictures_that_were_reshaped_in_place_of_transposed_are_named(channels: int) -> None:
    right = colours(channels=channels)
    wrong = right.transpose(0, 2, 3, 1).reshape(right.shape)
    assert "reshaped-pictures" not in codes(right)
    assert "reshaped-pictures" in codes(wrong)
    assert "reshaped-pictures" not in codes(right.transpose(0, 2, 3, 1))  # channels last, as the model wants
    assert "reshaped-pictures" not in codes(RANDOM.random((12, channels, 24, 24)))
    assert "reshaped-pictures" not in codes(right[:, :, :, :8])


def test_caches_of_four_heads_are_no_pictures() -> None:
    """Keys of a decoder's encoder have little in common from place to place."""
    caches = RANDOM.normal(size=(20, 4, 24, 32))
    assert codes(caches) == ["random-values"]
    assert "random-values" not in codes(caches, "past_key_values_0_key")
