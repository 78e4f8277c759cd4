"""Random graphs as exporters write them: simplified they compute the same, and quantized they keep the promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from corpus import tiny_weights_count
from exporter_graphs import IDIOMS, Drawing, Idiom, Refused, draw
from helpers import run
from verdict import SETTINGS, Broken, judge

from onnxq.ir import infer_types, parse
from onnxq.ir.passes import normalise
from onnxq.simplify import simplify

TOLERANCE = {
    np.dtype(np.float16): 3e-2,
    np.dtype(np.float32): 2e-3,
    np.dtype(np.float64): 2e-3,
}  # to the largest number
LEAST = 8.0  # dB: a dozen random idioms in a row may cancel; a bound on nonsense only


def simplified_alike(seed: int) -> list[str] | None:
    """Simplify a drawn graph and compare all outputs; gives the notes of the passes, None where nothing was drawn."""
    drawn = draw(seed)
    if drawn is None:
        return None
    proto, feeds = drawn
    model = parse(proto.SerializeToString())
    notes = list(normalise(model))
    infer_types(model)
    outcome = simplify(model)
    expected, found = run(proto.SerializeToString(), feeds), run(outcome.model.serialize(), feeds)
    for output, before, after in zip(proto.graph.output, expected, found, strict=True):
        told = f"seed {seed}, {output.name}: {notes} {list(outcome.notes)}"
        assert (before.shape, before.dtype) == (after.shape, after.dtype), told
        part = TOLERANCE.get(before.dtype, 0.0)  # integers and booleans are equal
        scale = part * max(1.0, float(np.abs(before).max(initial=0)))
        np.testing.assert_allclose(after, before, rtol=0, atol=scale, err_msg=told)
    return [*notes, *outcome.notes]


def fits(idiom: Idiom, drawing: Drawing) -> bool:
    """Whether an idiom fits the input of a drawing."""
    try:
        idiom(drawing, "x")
    except Refused:
        return False
    return True


def quantized_soundly(seed: int) -> str | None:
    """Quantize a drawn graph with one of the settings; gives how that ended, None where nothing was drawn."""
    drawn = draw(seed)
    if drawn is None:
        return None
    proto, feeds = drawn
    recipe, with_data = list(SETTINGS.values())[seed % len(SETTINGS)]
    samples = [feeds, {name: array * array.dtype.type(0.9) for name, array in feeds.items()}]
    try:
        with tiny_weights_count():
            return judge(proto, samples, recipe=recipe, with_data=with_data, least_sqnr=LEAST, fast=True).kind
    except Broken as error:
        raise Broken(f"seed {seed}: {error}") from error


def test_simplified_graphs_compute_the_same() -> None:
    found = [simplified_alike(seed) for seed in range(50)]
    assert sum(bool(notes) for notes in found) > 16


def test_quantized_graphs_keep_the_promises() -> None:
    kinds = Counter(quantized_soundly(seed) for seed in range(16))
    assert kinds["quantized"] > 5, kinds


def test_no_idiom_is_refused_always() -> None:
    drawings = [Drawing(seed) for seed in range(120)]
    assert [made.__name__ for made in IDIOMS if not any(fits(made, drawing) for drawing in drawings)] == []


@pytest.mark.slow
def test_three_thousand_simplified_graphs_compute_the_same() -> None:
    changed = sum(bool(simplified_alike(seed)) for seed in range(3000))
    print(f"\n{changed} of 3000 graphs were changed")
    assert changed > 1000


@pytest.mark.slow
def test_a_thousand_quantized_graphs_keep_the_promises() -> None:
    kinds = Counter(quantized_soundly(seed) for seed in range(1000))
    print(f"\n{kinds}")
    assert kinds["quantized"] > 300, kinds
