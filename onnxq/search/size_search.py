"""The search for the fewest weights that have to be stored in fewer bits, so that the file keeps to a size.

Float weights go to 8 bit first, then weights of 8 bit to 4. The first ones are those that add least to the error of the
outputs for each byte they save. How many it takes is found by bisection, each step a model that is encoded: what the
file really has, names and all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxq.errors import CheckFailed
from onnxq.ir import Model, Node, Value
from onnxq.ir.storage.files import written_bytes
from onnxq.ops.forms.family import MINIMUM_STORED_ELEMENTS, NotQuantizable
from onnxq.planning.decision import FOR_SIZE, Choices, Decision, Override
from onnxq.planning.planner import form_of, node_key
from onnxq.planning.recipe import load_recipe
from onnxq.search.bias_correction import bias_adder, shift_biases
from onnxq.search.noise_cuts import shortest_prefix
from onnxq.search.sensitivity import sensitivity
from onnxq.search.variants import Variants
from onnxq.stages.finish import finalize
from onnxq.stages.replan import copy_prepared
from onnxq.verification.families import record_latencies, shown_families

FOUR_BITS = ("MatMul", "Gemm", "Conv", "ConvTranspose")  # whose weights the families store in 4 bit
ALLOW_LARGER = "Allow a larger file, or leave less of it float."


@dataclass(frozen=True)
class SizeOption:
    """A weight that can be stored in fewer bits.

    Attributes:
        choices: For all nodes that read it.
        saved: Bytes of elements that this saves, about.

    """

    choices: Choices
    saved: float


def meet_size_limit(variants: Variants, choices: Choices, max_size: int, data_file: str | None = None) -> Choices:
    """Store weights in fewer bits until the file is small enough.

    Args:
        variants: What is tried; learns the codes of weights of 4 bit.
        choices: What is settled already; a weight that is to be smaller overrules that.
        max_size: Bytes that the file may have.
        data_file: Name of the file that the weights go to, if not into the model.

    Returns:
        All choices.

    Raises:
        CheckFailed: Even the smallest file is too large.

    """
    smallest = file_bytes(variants, choices, data_file)
    if smallest <= max_size:
        return choices
    for list_moves in (_to_eight_bits, _to_four_bits):
        moves = list_moves(variants, choices)
        if not moves:
            continue
        everything = _joined(choices, moves)
        size = file_bytes(variants, everything, data_file)
        if size > max_size:
            smallest, choices = min(smallest, size), everything
            continue
        variants.round_4bit_weights(everything)
        ranked = _ranked(variants, choices, moves)
        fits = partial(_fits, variants, choices, max_size, data_file)
        few = shortest_prefix(ranked, fits)
        spare = max_size - file_bytes(variants, _joined(choices, few), data_file)
        return _joined(choices, _without_idle(few, fits, spare))
    raise CheckFailed(
        f"the smallest file that is possible has {smallest:,} bytes, {max_size:,} are allowed", ALLOW_LARGER
    )


def _fits(variants: Variants, choices: Choices, most: int, data_file: str | None, moves: Sequence[SizeOption]) -> bool:
    return file_bytes(variants, _joined(choices, moves), data_file) <= most


def _without_idle(
    moves: Sequence[SizeOption], fits: Callable[[Sequence[SizeOption]], bool], spare: float
) -> Sequence[SizeOption]:
    """Leave out what the last of some moves has made unnecessary, because it saves much: what adds most goes first.

    Args:
        moves: Those that suffice, in the order in which they are made; without the last they do not.
        fits: Whether some suffice.
        spare: Bytes that the file may still grow by.

    """
    kept = list(moves)
    for move in reversed(moves[:-1]):
        if move.saved <= spare:
            spare -= move.saved
            kept.remove(move)
    return kept if len(kept) == len(moves) or fits(kept) else moves


def file_bytes(
    variants: Variants,
    choices: Choices,
    data_file: str | None = None,
    change: Callable[[Model], object] | None = None,
) -> int:
    """Return the size of the model that some choices lead to, with its weights in a file of that name or inside."""
    model = variants.model(choices, change)
    record_latencies(model, dict.fromkeys(shown_families(variants.prepared.plan.recipe.scheme.target), 1.0))
    return written_bytes(finalize(model, variants.prepared), data_file)


def fits_corrected(variants: Variants, choices: Choices, max_size: int, data_file: str | None = None) -> bool:
    """Whether the file stays small enough if every layer gets a bias of its own."""
    shifts = {}
    for decision in variants.planned(choices).decisions:
        adder = bias_adder(decision.node) if decision.form is not None else None
        output = adder.outputs[0] if adder is not None else None
        channels = output.shape[1 if adder.op_type == "Conv" else -1] if adder and output and output.shape else None
        if adder is not None and isinstance(channels, int):
            shifts[node_key(adder)] = np.zeros(channels, np.float32)
    return file_bytes(variants, choices, data_file, lambda model: shift_biases(model, shifts)) <= max_size


def _to_eight_bits(variants: Variants, choices: Choices) -> list[SizeOption]:
    """List the weights that are float without a setting that asks for it."""
    return _moves(variants, choices, 0.75, lambda decision, _: None if decision.scheme else ("weight-int8", {}))


def _to_four_bits(variants: Variants, choices: Choices) -> list[SizeOption]:
    """List the weights that have 8 bit and a form with 4."""
    recipe = load_recipe("weight-int4").scheme

    def four_bits(decision: Decision, scheme: Any) -> tuple[Any, dict[str, Any]] | None:
        node = decision.node
        if decision.scheme in (None, "weight-int4") or node.op_type not in FOUR_BITS or node.domain:
            return None
        if node.op_type in ("MatMul", "Gemm"):
            form = scheme.form if scheme.form == "matmulnbits" else recipe.form
            return "weight-int4", {"form": form, "block_size": scheme.block_size or recipe.block_size}
        return "weight-int4", {"form": "qdq" if scheme.form == "qdq" else "cast-mul", "block_size": 0}

    return _moves(variants, choices, 0.125, four_bits)


def _moves(
    variants: Variants, choices: Choices, saving: float, wish: Callable[[Decision, Any], Any]
) -> list[SizeOption]:
    """List the weights all of whose readers can have what is wished for them.

    Args:
        variants: What is tried.
        choices: What is settled already.
        saving: The share of a float weight's bytes that is saved.
        wish: Gives for a decision and its scheme the name and the settings of another, or None.

    """
    prepared = variants.replan(choices)[0]
    possible: dict[Node, Override] = {}
    for decision in prepared.plan.decisions:
        node = decision.node
        scheme, _ = prepared.plan.recipe.scheme_for(node.op_type, node.name)
        wished = wish(decision, scheme) if scheme.name != "float" and node_key(node) else None
        if wished is None:
            continue
        try:
            form = form_of(node, replace(scheme, name=wished[0], **wished[1]), prepared.model.opset)
        except NotQuantizable:
            continue
        if form.opset <= prepared.model.opset:
            possible[node] = Override(wished[0], FOR_SIZE, tuple(wished[1].items()))
    weights = dict.fromkeys(chain.from_iterable(_weights(node) for node in possible))
    moves = []
    for weight in weights:
        readers = list(dict.fromkeys(use.node for use in weight.uses))
        if weight.tensor is not None and all(reader in possible for reader in readers):
            made = {node_key(reader): possible[reader] for reader in readers}
            moves.append(SizeOption(made, saving * weight.tensor.nbytes))
    return moves


def _weights(node: Node) -> list[Value]:
    return [
        value
        for value in node.reads
        if value.constant is not None
        and value.dtype in (TensorProto.FLOAT, None)
        and value.constant.size >= MINIMUM_STORED_ELEMENTS
    ]


def _joined(choices: Choices, moves: Sequence[SizeOption]) -> Choices:
    joined = dict(choices)
    for move in moves:
        joined |= move.choices
    return joined


def _ranked(variants: Variants, choices: Choices, moves: Sequence[SizeOption]) -> list[SizeOption]:
    """Sort the moves: what adds least to the error for each byte saved goes first."""
    noise = _noise(variants, _joined(choices, moves))

    def rank(move: SizeOption) -> tuple[float, str]:
        return sum(noise.get(key, 0.0) for key in move.choices) / move.saved, min(move.choices)

    return sorted(moves, key=rank)


def _noise(variants: Variants, choices: Choices) -> Mapping[str, float]:
    prepared = copy_prepared(variants.prepared, choices)
    tried = Variants(prepared, variants.stats, variants.weights, variants.split)
    return {found.tensor: found.noise for found in sensitivity(tried)}
