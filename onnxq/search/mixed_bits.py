"""Bits for each weight in blocks, so that a model keeps to a size or to a loss: `--bits auto` and `--bits 3`.

Weights are ranked once, by what each loses alone (`bit_losses`). For a size, each byte goes where it takes most loss
away. A block's scale and zero point are more than a bit for each of its 32 codes, so longer blocks come before fewer
bits. For a loss, all weights have 4 bits, and bisection finds how many of them, the first in the ranking, need 8. A
mean of 3 bits (`--bits 3`) is a size, too.

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
from onnxq.ir.storage.files import needs_external_data, written_bytes
from onnxq.ir.storage.scratch_file import Spool
from onnxq.lowering.rewrite import rewrite
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.ops.forms.family import NotQuantizable
from onnxq.ops.forms.scheme import SchemeName
from onnxq.planning.decision import FOR_LIMIT, Choices, Override, node_key
from onnxq.planning.planner import form_of
from onnxq.rounding.block_grids import LEAST_SHARING, SCALES, SHORT, few_scales
from onnxq.rounding.block_solver import BlockSolution
from onnxq.rounding.layer_by_layer import BlockJob, block_jobs, can_step
from onnxq.rounding.tied_tables import tied_tables
from onnxq.rounding.weights import WeightKey, Weights
from onnxq.search.bit_losses import SCALE, Coding, measure_losses
from onnxq.search.noise_cuts import shortest_prefix
from onnxq.search.size_search import ALLOW_LARGER
from onnxq.stages.finish import finalize
from onnxq.stages.measure import choose_qparams
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, replan
from onnxq.targets.target import load_target

USUAL = 4  # bits of a weight where only a loss is limited
SCHEMES: dict[int, SchemeName] = {2: "weight-int2", 4: "weight-int4", 8: "weight-int8"}  # by bits
ELSEWHERE = "weights"  # any name of a file for weights
HALF = 2  # bytes of a scale of at most 11 bits
TRIALS = 4  # of choices for a size
ROOM = 64  # bytes for each weight, by which names and lengths may differ


@dataclass(frozen=True)
class MixedWeight:
    """A weight in blocks whose bits are open.

    Attributes:
        job: The weight, and how the recipe codes it.
        codings: Those that it can have.
        losses: What the outputs lose by its coding.
        narrow: Whether scales are stored in fewer than 32 bits.

    """

    job: BlockJob
    codings: tuple[Coding, ...]
    losses: Mapping[Coding, float]
    narrow: bool = False

    def size(self, coding: Coding) -> int:
        """Return the bytes of codes, scales and zero points."""
        scale = self._scale(coding) if self.narrow else SCALE
        return self._bytes(coding, scale) + (SCALES * SCALE if scale == 1 else 0)

    def size_of_mean(self, bits: int, scale: int) -> int:
        """Return the bytes of a mean of some bits, in blocks of the recipe, with so many bytes for a scale."""
        return self._bytes(self.own(bits), scale)

    def _bytes(self, coding: Coding, scale: int) -> int:
        channels, n = self.job.rows().shape
        return channels * coding.row_bytes(n, scale)

    def _scale(self, coding: Coding) -> int:
        """Return the bytes of a scale: few bits fit into 16, and codes of few bits have few different scales."""
        channels, n = self.job.rows().shape
        many = channels * -(-n // coding.block) >= LEAST_SHARING
        return 1 if many and coding.bits <= SHORT else HALF

    def own(self, bits: int) -> Coding:
        """Return the coding of some bits with the blocks of the recipe."""
        return Coding(bits, self.job.coding.block_size)

    @property
    def usual(self) -> Coding:
        """Its coding where only a loss is limited."""
        usual = self.own(USUAL)
        return usual if usual in self.codings else self.smallest(0)

    def smallest(self, bits: int) -> Coding:
        """Return the coding of fewest bytes that has so many bits; of all, where none has."""
        enough = [coding for coding in self.codings if coding.bits >= bits]
        return min(enough or self.codings, key=self.size)

    def steps(self, start: Coding) -> list[BitStep]:
        """Return the steps from a coding to larger ones; each takes less loss away for a byte than the one before."""
        made: list[BitStep] = []
        while True:
            larger = [BitStep(self, start, coding) for coding in self.codings if self.size(coding) > self.size(start)]
            best = max(larger, key=lambda step: step.worth, default=None)
            if best is None or best.worth <= 0:
                return made
            made.append(best)
            start = best.after

    def choices(self, coding: Coding) -> dict[str, Override]:
        """Return the choice for each node that reads it."""
        own = coding.block == self.job.coding.block_size
        settings = () if own else (("block_size", coding.block),)
        return {node_key(node): Override(SCHEMES[coding.bits], FOR_LIMIT, settings) for node in self.job.readers}


@dataclass(frozen=True)
class BitStep:
    """A weight that gets more bytes.

    Attributes:
        weight: The weight.
        before: Its coding so far.
        after: Its coding then.

    """

    weight: MixedWeight
    before: Coding
    after: Coding

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
        known = losses.get(job.key, {})
        codings = tuple(coding for coding in known if _possible(prepared, job, coding))
        if codings:
            found.append(MixedWeight(job, codings, known, _stores_narrow(prepared)))
    return found


def _stores_narrow(prepared: Prepared) -> bool:
    """Whether scales take few bytes in the file, as `finalize` stores them."""
    return load_target(prepared.plan.recipe.scheme.target).stored == "cast-mul"


def _possible(prepared: Prepared, job: BlockJob, coding: Coding) -> bool:
    for node in job.readers:
        scheme, _ = prepared.plan.recipe.scheme_for(node.op_type, node.name)
        settings: dict[str, Any] = {"name": SCHEMES[coding.bits], "block_size": coding.block}
        try:
            form = form_of(node, replace(scheme, **settings), prepared.model.opset)
        except NotQuantizable:
            return False
        if form.opset > prepared.model.opset:
            return False
    return True


def bits_for_size(weights: Sequence[MixedWeight], room: float) -> dict[WeightKey, Coding]:
    """Choose codings so that least is lost in some bytes.

    No weight has longer blocks than the recipe's where there is room for those. None has 2 bits where all of them can
    have 4: errors of 2 bits are too large to add up. With three weights of 2 bits and five of 8, a character GPT of
    2.1 MB had a divergence of 0.0041. It has 0.0032 with two of 8.

    Args:
        weights: The weights.
        room: Bytes of codes, scales and zero points, all together.

    Returns:
        The coding of each weight; the smallest where even those take more.

    """
    starts = [[weight.usual, weight.smallest(USUAL), weight.smallest(0)] for weight in weights]
    chosen: dict[WeightKey, Coding] = {}
    taken = 0
    for codings in zip(*starts, strict=True):
        chosen = {weight.job.key: coding for weight, coding in zip(weights, codings, strict=True)}
        taken = sum(weight.size(chosen[weight.job.key]) for weight in weights)
        if taken <= room:
            break
    room -= taken
    steps = [
        (-step.worth, index, place, step)
        for index, weight in enumerate(weights)
        for place, step in enumerate(weight.steps(chosen[weight.job.key]))
    ]
    for _, _, _, step in sorted(steps, key=lambda one: one[:3]):
        key = step.weight.job.key
        if step.size <= room and chosen[key] == step.before:
            chosen[key] = step.after
            room -= step.size
    return chosen


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
    chosen = {weight.job.key: weight.usual for weight in weights}

    def expected() -> int:
        spare = copy_prepared(prepared, {**prepared.plan.choices, **_choices(weights, chosen)})
        return _expected_bytes(spare, stats, data_file, spool)

    own = sum(weight.size(chosen[weight.job.key]) for weight in weights)
    room = max_size - (expected() - own + ROOM * len(weights))
    size = 0
    for _ in range(TRIALS):
        chosen = bits_for_size(weights, room)
        size = expected()
        if size <= max_size:
            break
        room -= size - max_size  # scales that do not fit into 16 bits take more than expected
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

    SmolLM2 in 4.11 bits a weight, 20 of 210 in 2 and 8 in 8, rises by 1.09 in perplexity. With 4 bits for all in longer
    blocks and scales of 16 bits, it rose by 1.23 in 4.26 bits.

    Args:
        prepared: The float model and its plan.
        samples: What losses are measured on.
        stats: Of a calibration; not needed.
        bits: Of codes and zero points, on average over the weights whose bits are open, in blocks of the recipe's size.
        spool: Says in which folder there is room, for a large model.

    Raises:
        DataError: See `mixed_weights`.

    """
    weights = mixed_weights(prepared, samples, spool)
    # The mean of a large model is that of scales in 32 bits, as others store them: 0.8 of their four bits
    in_halves = prepared.strategy.tries_variants and all(weight.narrow for weight in weights)
    room = sum(weight.size_of_mean(bits, HALF if in_halves else SCALE) for weight in weights)
    chosen = bits_for_size(weights, room)
    return replan(prepared, {**prepared.plan.choices, **_choices(weights, chosen)})


def _choices(weights: Sequence[MixedWeight], chosen: Mapping[WeightKey, Coding]) -> Choices:
    made: dict[str, Override] = {}
    for weight in weights:
        made |= weight.choices(chosen[weight.job.key])
    return made


def said_bits(choices: Choices) -> tuple[str, ...]:
    """Say how many products have how many bits; nothing where no bits were chosen."""
    made = [choice for choice in choices.values() if choice.reason == FOR_LIMIT]
    counts = Counter(choice.scheme for choice in made)
    parts = (f"{counts[scheme]} of {bits}" for bits, scheme in reversed(SCHEMES.items()) if counts[scheme])
    longer = sum(1 for choice in made if choice.settings)
    said = f", {longer} of them in longer blocks" if longer else ""
    return (f"chose bits {FOR_LIMIT}: weights of {', '.join(parts)} bits{said}",) if counts else ()


def _expected_bytes(spare: Prepared, stats: Stats, data_file: str | None, spool: Spool | None) -> int:
    """Return the bytes of the file that a copy leads to, whose codes are of no use yet."""
    solutions: dict[WeightKey, BlockSolution] = {}
    if not spare.strategy.tries_variants and spool is not None:  # to round a large model takes long
        for seed, job in enumerate(block_jobs(spare.plan)):
            solutions[job.key] = BlockSolution(_stand_in(job, seed), "nearest").kept(spool.keep)
    weights = Weights(spool=spool, solutions=solutions)
    rewritten = rewrite(spare.model, spare.plan, choose_qparams(spare.plan, stats), weights)
    model = finalize(rewritten, spare, weights.keep)
    return written_bytes(model, data_file or (ELSEWHERE if needs_external_data(model) else None))


def _stand_in(job: BlockJob, seed: int) -> BlockCodes:
    """Return random codes of the right shape: equal ones would be stored once, and simple scales in few bytes."""
    random, (channels, n) = np.random.default_rng(seed), job.rows().shape
    blocks, end = (channels, -(-n // job.coding.block_size)), 2**job.coding.bits
    wide = np.ldexp(random.integers(1024, 2048, blocks).astype(np.float32), -17)  # as many bits as fitted ones have
    scales = few_scales(wide, job.coding.bits)
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
    usual = {weight.job.key: weight.usual for weight in weights}
    pairs = [(weight, weight.own(8)) for weight in weights]
    steps = [BitStep(weight, weight.usual, most) for weight, most in pairs if most in weight.codings]
    ranked = sorted((step for step in steps if step.before.bits < 8), key=lambda step: -step.worth)

    def choices(raised: Sequence[BitStep]) -> Choices:
        made = _choices(weights, usual | {step.weight.job.key: step.after for step in raised})
        return {**prepared.plan.choices, **made}

    def suffices(raised: Sequence[BitStep]) -> bool:
        return meets(model(choices(raised)))

    if suffices(()):
        return choices(())
    if not ranked or not suffices(ranked):
        return None
    return choices(shortest_prefix(ranked, suffices))
