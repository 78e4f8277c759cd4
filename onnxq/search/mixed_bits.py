"""Bits for each weight in blocks, so that a model keeps to a size or to a loss: `--bits auto` and `--bits 3`.

Weights are ranked once, by what each loses alone (`bit_losses`). For a size, each byte goes where it takes most loss
away. For a loss, all weights have 4 bits, and bisection finds how many of them, the first in the ranking, need 8.
A mean of 3 bits (`--bits 3`) is a size, too.

Tests: `tests/search/test_mixed_bits.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxq.calibration.stats import Stats
from onnxq.errors import CheckFailed, DataError, RecipeError
from onnxq.ir import Model
from onnxq.ir.storage.files import needs_external_data
from onnxq.ir.storage.scratch_file import Spool
from onnxq.lowering.rewrite import rewrite
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.ops.forms.family import NotQuantizable
from onnxq.ops.forms.scheme import SchemeName
from onnxq.planning.decision import FOR_LIMIT, Choices, Override, node_key
from onnxq.planning.planner import form_of
from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.layer_by_layer import BlockJob, block_jobs, can_step
from onnxq.rounding.tied_tables import tied_tables
from onnxq.rounding.weights import WeightKey, Weights
from onnxq.search.bit_losses import measure_losses
from onnxq.search.mixed_precision import shortest_prefix
from onnxq.search.size_search import ALLOW_LARGER, written_bytes
from onnxq.stages.finish import finalize
from onnxq.stages.measure import choose_qparams
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, replan

USUAL = 4  # bits of a weight where only a loss is limited
SCHEMES: dict[int, SchemeName] = {2: "weight-int2", 4: "weight-int4", 8: "weight-int8"}  # by bits
ELSEWHERE = "weights"  # any name of a file for weights
ROOM = 64  # bytes for each weight, by which names and lengths may differ


@dataclass(frozen=True)
class MixedWeight:
    """A weight in blocks whose bits are open.

    Attributes:
        job: The weight, and how the recipe codes it.
        bits: Those that it can have, ascending.
        losses: What the outputs lose by its bits.

    """

    job: BlockJob
    bits: tuple[int, ...]
    losses: Mapping[int, float]

    def size(self, bits: int) -> int:
        """Return the bytes of codes and zero points."""
        channels, n = self.job.rows().shape
        blocks = -(-n // self.job.coding.block_size)
        return channels * (blocks * self.job.coding.block_size * bits // 8 + -(-blocks * bits // 8))

    def choices(self, bits: int) -> dict[str, Override]:
        """Return the choice for each node that reads it."""
        return {node_key(node): Override(SCHEMES[bits], FOR_LIMIT) for node in self.job.readers}


@dataclass(frozen=True)
class BitStep:
    """A weight that gets more bits.

    Attributes:
        weight: The weight.
        before: Its bits so far.
        after: Its bits then.

    """

    weight: MixedWeight
    before: int
    after: int

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.weight.size(self.after) - self.weight.size(self.before)

    @property
    def worth(self) -> float:
        """Loss that it takes away for each byte."""
        return (self.weight.losses[self.before] - self.weight.losses[self.after]) / max(self.size, 1)


def mixed_weights(
    prepared: Prepared, samples: Sequence[Mapping[str, Any]], spool: Spool | None = None
) -> list[MixedWeight]:
    """List the weights whose bits are open; not those of a tied head, which shares its 8 bits with the embeddings.

    Args:
        prepared: The float model and its plan.
        samples: What losses are measured on.
        spool: Says in which folder there is room, for a large model.

    Raises:
        DataError: There are no samples.
        RecipeError: onnxq lacks a kernel.

    """
    plan = prepared.plan
    tied = {product.weight for product in tied_tables(plan).values()}
    jobs = [job for job in block_jobs(plan) if job.weight not in tied and job.readers]
    if jobs and not can_step(prepared.model, jobs):
        raise RecipeError("onnxq cannot run the model layer by layer, so no bits can be chosen", "Pass --bits 4.")
    losses = measure_losses(prepared.model, jobs, samples, spool)
    if jobs and not losses:
        raise DataError("what a weight loses in fewer bits shows on data only", "Add --data, or pass --bits 4.")
    found = []
    for job in jobs:
        bits = tuple(bits for bits in SCHEMES if _possible(prepared, job, bits))
        if job.key in losses and bits:
            found.append(MixedWeight(job, bits, losses[job.key]))
    return found


def _possible(prepared: Prepared, job: BlockJob, bits: int) -> bool:
    for node in job.readers:
        scheme, _ = prepared.plan.recipe.scheme_for(node.op_type, node.name)
        try:
            form = form_of(node, replace(scheme, name=SCHEMES[bits]), prepared.model.opset)
        except NotQuantizable:
            return False
        if form.opset > prepared.model.opset:
            return False
    return True


def bits_for_size(weights: Sequence[MixedWeight], room: float) -> dict[WeightKey, int]:
    """Choose bits so that least is lost in some bytes.

    No weight has 2 bits where all of them can have 4: errors of 2 bits are too large to add up. With three weights of 2
    bits and five of 8, a character GPT of 2.1 MB had a divergence of 0.0041. It has 0.0032 with two of 8.

    Args:
        weights: The weights.
        room: Bytes of codes and zero points, all together.

    Returns:
        The bits of each weight; the fewest where even those take more.

    """
    chosen = {weight.job.key: _planned_bits(weight) for weight in weights}
    if sum(weight.size(chosen[weight.job.key]) for weight in weights) > room:
        chosen = {weight.job.key: weight.bits[0] for weight in weights}
    room -= sum(weight.size(chosen[weight.job.key]) for weight in weights)
    steps = [
        (-step.worth, index, place, step)
        for index, weight in enumerate(weights)
        for place, step in enumerate(_steps(weight))
    ]
    for _, _, _, step in sorted(steps, key=lambda one: one[:3]):
        key = step.weight.job.key
        if step.size <= room and chosen[key] == step.before:
            chosen[key] = step.after
            room -= step.size
    return chosen


def _steps(weight: MixedWeight) -> list[BitStep]:
    return [BitStep(weight, *pair) for pair in zip(weight.bits, weight.bits[1:], strict=False)]


def keep_to_size(
    prepared: Prepared,
    samples: Sequence[Mapping[str, Any]],
    stats: Stats,
    *,
    max_size: int,
    data_file: str | None = None,
    spool: Spool | None = None,
) -> Prepared:
    """Plan with the bits of least loss for a file of some bytes.

    Args:
        prepared: The float model and its plan.
        samples: What losses are measured on.
        stats: Of a calibration.
        max_size: Bytes that the file may have.
        data_file: Name of the file that the weights go to, if not into the model.
        spool: Says in which folder there is room, for a large model.

    Raises:
        CheckFailed: Even the fewest bits take more.
        DataError: See `mixed_weights`.

    """
    weights = mixed_weights(prepared, samples, spool)
    usual = {weight.job.key: _planned_bits(weight) for weight in weights}
    own = sum(weight.size(usual[weight.job.key]) for weight in weights)
    spare = copy_prepared(prepared, {**prepared.plan.choices, **_choices(weights, usual)})
    rest = _expected_bytes(spare, stats, data_file, spool) - own + ROOM * len(weights)
    chosen = bits_for_size(weights, max_size - rest)
    size = rest + sum(weight.size(chosen[weight.job.key]) for weight in weights)
    if size > max_size:
        raise CheckFailed(
            f"the smallest file that is possible has about {size:,} bytes, {max_size:,} are allowed", ALLOW_LARGER
        )
    return replan(prepared, {**prepared.plan.choices, **_choices(weights, chosen)})


def keep_to_mean(
    prepared: Prepared,
    samples: Sequence[Mapping[str, Any]],
    stats: Stats,
    *,
    bits: int,
    spool: Spool | None = None,
) -> Prepared:
    """Plan with the bits of least loss that take no more bytes than so many bits for each code.

    Args:
        prepared: The float model and its plan.
        samples: What losses are measured on.
        stats: Of a calibration; not needed.
        bits: Of codes and zero points, on average over the weights whose bits are open.
        spool: Says in which folder there is room, for a large model.

    Raises:
        DataError: See `mixed_weights`.

    """
    weights = mixed_weights(prepared, samples, spool)
    chosen = bits_for_size(weights, sum(weight.size(bits) for weight in weights))
    return replan(prepared, {**prepared.plan.choices, **_choices(weights, chosen)})


def _planned_bits(weight: MixedWeight) -> int:
    return USUAL if USUAL in weight.bits else weight.bits[0]


def _choices(weights: Sequence[MixedWeight], chosen: Mapping[WeightKey, int]) -> Choices:
    made: dict[str, Override] = {}
    for weight in weights:
        made |= weight.choices(chosen[weight.job.key])
    return made


def said_bits(choices: Choices) -> tuple[str, ...]:
    """Say how many products have how many bits; nothing where no bits were chosen."""
    counts = Counter(choice.scheme for choice in choices.values() if choice.reason == FOR_LIMIT)
    parts = (f"{counts[scheme]} of {bits}" for bits, scheme in reversed(SCHEMES.items()) if counts[scheme])
    return (f"chose bits {FOR_LIMIT}: weights of {', '.join(parts)} bits",) if counts else ()


def _expected_bytes(spare: Prepared, stats: Stats, data_file: str | None, spool: Spool | None) -> int:
    """Return the bytes of the file that a copy leads to, whose codes are of no use yet."""
    solutions: dict[WeightKey, BlockSolution] = {}
    if not spare.strategy.tries_variants and spool is not None:  # to round a large model takes long
        for seed, job in enumerate(block_jobs(spare.plan)):
            solutions[job.key] = BlockSolution(_stand_in(job, seed), "nearest").kept(spool.keep)
    weights = Weights(spool=spool, solutions=solutions)
    model = finalize(rewrite(spare.model, spare.plan, choose_qparams(spare.plan, stats), weights), spare)
    return written_bytes(model, None, data_file or (ELSEWHERE if needs_external_data(model) else None))


def _stand_in(job: BlockJob, seed: int) -> BlockCodes:
    """Return random codes of the right shape: equal ones would be stored once, and simple scales in few bytes."""
    random, (channels, n) = np.random.default_rng(seed), job.rows().shape
    blocks, end = (channels, -(-n // job.coding.block_size)), 2**job.coding.bits
    scales = np.ldexp(random.integers(1024, 2048, blocks).astype(np.float32), -17)  # as many bits as fitted ones have
    zeros = random.integers(0, end, blocks, np.uint8)
    return BlockCodes(random.integers(0, end, (channels, n), np.uint8), scales, zeros)


def keep_to_loss(
    prepared: Prepared,
    weights: Sequence[MixedWeight],
    model: Callable[[Choices], Model],
    meets: Callable[[Model], bool],
) -> Choices | None:
    """Find the fewest weights that need 8 bits instead of 4.

    Args:
        prepared: The float model and its plan.
        weights: The weights whose bits are open.
        model: Makes a quantized model with some choices.
        meets: Whether a model keeps to the limit.

    Returns:
        The choices; None where all weights in 8 bits do not suffice.

    """
    usual = {weight.job.key: _planned_bits(weight) for weight in weights}
    steps = [BitStep(weight, usual[weight.job.key], 8) for weight in weights if weight.bits[-1] == 8]
    ranked = sorted((step for step in steps if step.before < 8), key=lambda step: -step.worth)

    def choices(raised: Sequence[BitStep]) -> Choices:
        made = _choices(weights, usual | {step.weight.job.key: 8 for step in raised})
        return {**prepared.plan.choices, **made}

    def suffices(raised: Sequence[BitStep]) -> bool:
        return meets(model(choices(raised)))

    if suffices(()):
        return choices(())
    if not ranked or not suffices(ranked):
        return None
    return choices(shortest_prefix(ranked, suffices))
