"""Who shares a limit, and whether it pays."""

from __future__ import annotations

import numpy as np
from helpers import build, node, typed

from onnxq.rescaling.attention_masks import MaskedSoftmax, ScoreRange, find_masked
from onnxq.rescaling.mask_limits import MaskLimit, choose_limits

MANY, FEW = 100_000, 100


def layers(*spreads: ScoreRange | None, denormals: int = MANY, elements: int = MANY) -> list[MaskedSoftmax]:
    """As many Softmax that read one mask, with what one sample has said; None for scores that are spread too widely."""
    nodes = []
    for index in range(len(spreads)):
        nodes += [node("Add", f"s{index} m", f"x{index}"), node("Softmax", f"x{index}", f"p{index}", axis=-1)]
        nodes += [node("Identity", f"p{index}", f"y{index}")]
    inputs = {"m": [4, 4]} | {f"s{index}": [4, 4] for index in range(len(spreads))}
    model = typed(build(nodes, inputs, [f"y{index}" for index in range(len(spreads))]))
    found = find_masked(model.graph, model.opset, lambda value: None)
    for masked, spread in zip(found, spreads, strict=True):
        mask = model.graph.values["m"]
        masked.denormals, masked.elements, masked.rows, masked.samples = denormals, elements, elements // 100, 1
        masked.deep = {mask} if spread is not None else set(masked.terms)
        masked.spreads = {mask: spread} if spread is not None else {}
    return found


def unknown(value):
    return None


def test_all_that_read_a_mask_share_the_highest_limit_that_one_needs() -> None:
    found = layers(ScoreRange(10, 1), ScoreRange(20, 2), ScoreRange(5, 0))
    (limited,) = choose_limits(found, unknown)
    assert limited == MaskLimit(tuple(found), -58)


def test_a_limit_serves_those_only_that_have_room_for_it() -> None:
    found = layers(ScoreRange(30, 0), ScoreRange(0, 25))
    assert [(each.limit, each.readers) for each in choose_limits(found, unknown)] == [
        (-47, (found[0],)),
        (-80, (found[1],)),
    ]


def test_scores_are_limited_where_no_mask_serves() -> None:
    wide, masked = layers(None, ScoreRange(10, 1))
    assert [(each.limit, each.readers) for each in choose_limits([wide, masked], unknown)] == [
        (None, (wide,)),
        (-69, (masked,)),
    ]
    assert not choose_limits(layers(None, denormals=MANY // 10), unknown), "it goes through all scores"


def test_few_denormals_pay_for_no_node_but_for_a_constant() -> None:
    found = layers(ScoreRange(10, 1), denormals=FEW)
    assert not choose_limits(found, unknown)
    (limited,) = choose_limits(found, lambda value: np.zeros((4, 4), np.float32))
    assert limited.elements is not None
    assert not choose_limits(layers(ScoreRange(10, 1), denormals=0), lambda value: np.zeros((4, 4), np.float32))


def test_masks_that_are_equal_at_every_run_are_one() -> None:
    first, second = (layers(ScoreRange(depth, 1))[0] for depth in (10, 20))
    (limited,) = choose_limits([first, second], lambda value: np.zeros((4, 4), np.float32))
    assert limited.readers == (first, second)
    assert len(choose_limits([first, second], unknown)) == 2
