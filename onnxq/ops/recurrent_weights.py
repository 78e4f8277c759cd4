"""LSTM, GRU and RNN with constant weights: computed in float, the weights stored in 8 bit."""

from __future__ import annotations

from onnxq.ops.family import MINIMUM_STORED_ELEMENTS, Decline, Form, Rewriter, Site, plans, rewrites

WEIGHT_SLOTS = (1, 2)  # W and R, both [directions, gates * hidden, inputs]: every row makes one gate of one unit
REDUCED = (2,)


@plans("LSTM", "GRU", "RNN", when="weight-int8")
@plans("LSTM", "GRU", "RNN", when="weight-int4")
def plan_recurrent(site: Site) -> Form:
    """Accept constant weights that are large enough to be worth storing in 8 bit."""
    site.float_input(0)
    size = sum(site.weight(slot, rank=3).size for slot in WEIGHT_SLOTS)
    if size < MINIMUM_STORED_ELEMENTS:
        raise Decline(f"weights have only {size} elements")
    return Form(
        "weights stored in 8 bit, computed in float",
        opset=site.scheme.pair_opset(weight=True) if site.scheme.form == "qdq" else 7,
    )


@rewrites("LSTM", "GRU", "RNN", when="weight-int8")
@rewrites("LSTM", "GRU", "RNN", when="weight-int4")
def rewrite_recurrent(site: Site, patch: Rewriter) -> None:
    """Let the node read float weights that the file holds in 8 bit, one scale for each row."""
    for slot in WEIGHT_SLOTS:
        patch.rewire(site.node, slot, patch.stored(site.value(slot), reduce=REDUCED, scheme=site.scheme))
