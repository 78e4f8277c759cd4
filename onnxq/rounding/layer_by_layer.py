"""Codes of block weights, chosen layer by layer: each on what it reads once the layers before are quantized.

All samples advance together, one node after the other. If the next layer has a weight in blocks, the second moments of
its input decide its codes. The samples go on with the weight of those codes. That is sequential calibration as in GPTQ
(https://arxiv.org/abs/2210.17323), for any graph. Samples enter the branches of `If` that they take. The float model
advances at the same time, so that each weight can compensate for the error of the layers before (`prefix_error`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxq.calibration.im2col import Unfolding, unfolding_of
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.second_moments import LayerMoments
from onnxq.calibration.stats import Stats
from onnxq.evaluator import Evaluator, Run, Step, arithmetic
from onnxq.evaluator.schedule import NodeSchedule
from onnxq.ir import Model, Node, Value
from onnxq.ir.storage.residency import Residency
from onnxq.ir.storage.scratch_file import Spool
from onnxq.ir.storage.shelf import Shelf, release_array
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.planning.planner import Plan
from onnxq.progress import working
from onnxq.rounding.block_solver import BlockSolution, solve_blocks
from onnxq.rounding.checkpoint import Checkpoint
from onnxq.rounding.jobs import WeightRows
from onnxq.rounding.prefix_error import CommonErrors, InputErrors, OutputErrors, Pair, compensated
from onnxq.rounding.short_block_search import Trusted
from onnxq.rounding.tied_tables import tied_tables
from onnxq.rounding.weights import WeightKey, WeightSpec, finite_rows, searched_weights
from onnxq.runtime.blas_threads import single_threaded_blas
from onnxq.runtime.memory import LARGEST_KEPT, keep_freed_blocks, trim_heap
from onnxq.runtime.workers import run_in_order

MOST_COLUMNS = 2304  # of a block of H: 42 MB in float64, of which a search holds six
TOGETHER = 1 << 22  # elements of a weight that are made of codes at a time: 16 MB
LARGEST_BLOCK = 256  # of a weight
LEAST_SHARED = 1 << 22  # elements of a weight from which on it shares sums with others, if the model is not large
MAPPED = 32 << 20  # bytes of weights in files that nodes read while one sample goes through them


@dataclass
class MeasuredInput:
    """Sums over one way to read a value, or one in each branch, which serve all layers that read it so.

    Attributes:
        moments: Second moments in the quantized prefix.
        errors: What the quantized prefix changed; None until a large weight asks for it.
        trusted: What a quick search has made of the moments, if they are of one block.

    """

    moments: LayerMoments
    errors: InputErrors | None = None
    trusted: list[Trusted] = field(default_factory=list)


Inputs = dict[tuple[tuple[Value, ...], Unfolding], MeasuredInput]


@dataclass(frozen=True)
class BlockJob:
    """A weight to be rounded in blocks.

    Attributes:
        weight: A constant float32 matrix.
        coding: How to round it.
        readers: The layers that read it, with the slot of their activation and how they read that.
        corrects: Whether it may compensate for the error of the layers before.

    """

    weight: Value
    coding: WeightSpec
    readers: Mapping[Node, tuple[int, Unfolding]]
    corrects: bool = False

    @property
    def key(self) -> WeightKey:
        """The key of the solution."""
        return self.weight.elements, self.coding

    def rows(self) -> WeightRows:
        """Return the weight as rows."""
        return WeightRows(self.key[0].view(), self.coding.axes)

    def finite_rows(self, node: Node) -> np.ndarray:
        """Return the rows in memory, and release the file that they come from; see `weights.finite_rows`."""
        rows = finite_rows(self.rows(), self.weight, node.label)
        self.rows().release()
        return rows


def block_jobs(plan: Plan) -> list[BlockJob]:
    """List the weights that a plan codes in blocks with zero points and whose codes are worth choosing."""
    jobs = []
    correcting = {d.node for d in plan.decisions if d.settings is not None and d.settings.prefix_correction}
    tied = {product.weight for product in tied_tables(plan).values()}  # rows of a table mean the same behind no layer
    for (weight, coding), nodes in searched_weights(plan).items():
        if coding.zero_points:
            found = {node: unfolding_of(node) for node in nodes}
            ways = {node: way for node, way in found.items() if way is not None}
            corrects = correcting.issuperset(nodes) and weight not in tied and _is_plain(weight, ways)
            jobs.append(BlockJob(weight, coding, ways, corrects))
    return jobs


def _is_plain(weight: Value, ways: Mapping[Node, tuple[int, Unfolding]]) -> bool:
    """Whether a weight is a matrix that multiplies the last axis of one activation, or of one in each branch."""
    graphs = [node.graph for node in ways]
    in_branches = len(set(graphs)) == len(ways) and len({graph.owner for graph in graphs}) == 1
    return (
        in_branches
        and all(not slot and unfolding.axis == -1 for slot, unfolding in ways.values())
        and weight.constant is not None
        and len(weight.shape or ()) == 2
    )


def can_step(model: Model, jobs: Sequence[BlockJob]) -> bool:
    """Tell whether samples can advance node by node up to the last of some layers, by kernels of ours."""
    read = [node.inputs[slot] for job in jobs for node, (slot, _) in job.readers.items() if _is_stepped(node, model)]
    return Evaluator(model).has_kernels([value for value in read if value is not None])


def _is_stepped(node: Node, model: Model) -> bool:
    """Whether a node is in the main graph, or in branches of `If` alone."""
    graph = node.graph
    while graph.owner is not None and graph.owner.op_type == "If" and not graph.owner.domain:
        graph = graph.owner.graph
    return graph is model.graph


def round_layer_by_layer(
    model: Model,
    jobs: Sequence[BlockJob],
    samples: Sequence[Mapping[str, Any]],
    spool: Spool | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[WeightKey, BlockSolution]:
    """Choose codes for weights in blocks, each on inputs that the quantized layers before give.

    A large model is run in float32, and its search for codes is shorter.

    Args:
        model: The float model.
        jobs: The weights, in any order; layers inside bodies of loops are left out.
        samples: What to calibrate on; all of them are in memory, with their live tensors, unless there is a spool.
        spool: Where codes are kept; live tensors of samples are in another file of its folder.
        checkpoint: What an earlier run has chosen, and where this one puts what it chooses.

    Returns:
        The solution of each weight, whose codes are of rows.

    """
    place = nullcontext() if spool is None else Shelf(spool.folder)
    with place as shelf, working("round") as advance, arithmetic():
        walk = _Walk(model, jobs, shelf)
        keep_freed_blocks()
        for key, arrivals in walk.begin(samples):
            job = walk.jobs[key]
            solution = None if checkpoint is None else checkpoint.find(key[0].view(), job.coding)
            if solution is None:
                solution = walk.solve(job, arrivals)
                if checkpoint is not None:
                    checkpoint.keep(solution)
            job.rows().release()
            walk.found[key] = solution if spool is None else solution.kept(spool.keep)
            del solution
            if key[0].nbytes > LARGEST_KEPT:  # the next one has use for what a smaller one has left
                trim_heap(key[0].nbytes)
            advance(len(walk.found), len(jobs))
    return walk.found


@dataclass(frozen=True)
class Arrival:
    """A layer, and the samples that stand in front of it.

    Attributes:
        step: The layer.
        way: The slot of its activation, and how it reads that.
        runs: Where each sample stands.
        exact: Where they stand in the float model; empty until a weight has codes.

    """

    step: Step
    way: tuple[int, Unfolding]
    runs: Sequence[Run]
    exact: Sequence[Run] = ()

    @property
    def node(self) -> Node:
        """The node of the layer."""
        return self.step.node

    @property
    def value(self) -> Value:
        """The activation of the layer."""
        value = self.node.inputs[self.way[0]]
        assert value is not None
        return value

    @property
    def pairs_up(self) -> bool:
        """Whether the float model gives the layer as many rows; a router may send other tokens to an expert there."""
        return bool(self.exact) and all(
            np.shape(run.values[self.value]) == np.shape(other.values[self.value])
            for run, other in zip(self.runs, self.exact, strict=True)
        )


Pause = tuple[WeightKey, list[Arrival]]


class _Walk:
    """Samples that advance together through a model, and pause in front of each weight that has no codes yet.

    Samples that take different branches of an `If` advance side by side. A weight that both branches read gets codes
    once both have come to it.
    """

    def __init__(self, model: Model, jobs: Sequence[BlockJob], shelf: Shelf | None) -> None:
        self.large, self.shelf = model.residency is Residency.FILES, shelf
        self.jobs = {job.key: job for job in jobs}
        self.found: dict[WeightKey, BlockSolution] = {}
        self._evaluator = Evaluator(model, wide=not self.large, changing={job.weight for job in jobs})
        self._by_node = {node: job for job in jobs for node in job.readers if _is_stepped(node, model)}
        self._left = set(self._by_node)
        self._readers = Counter(node.inputs[job.readers[node][0]] for node, job in self._by_node.items())
        self._ahead = set[Step]()  # nodes that the float model has run before the quantized one does
        self._corrects = any(job.corrects for job in jobs)
        self._known: Inputs = {}

    def begin(self, samples: Sequence[Mapping[str, Any]]) -> Iterator[tuple[WeightKey, list[Arrival]]]:
        """Visit weights with the layers that read them; each has to be in `found` before the next."""
        runs = [self._evaluator.begin(sample) for sample in samples]
        return self._through(self._evaluator.steps, runs, [])

    def solve(self, job: BlockJob, arrivals: Sequence[Arrival]) -> BlockSolution:
        """Choose the codes of a weight."""
        measured = measured_input(arrivals, self._known, large=self.large)
        rows = self._rows(job, arrivals, measured)
        bits, size = job.coding.bits, job.coding.block_size
        return solve_blocks(rows, measured.moments, bits, size, quick=self.large, known=measured.trusted)

    def _through(self, steps: Sequence[Step], runs: list[Run], exact: list[Run]) -> Iterator[Pause]:
        """Advance samples through the nodes of one graph; `exact` is filled once a weight has codes."""
        waiting: list[Step] = []  # each sample goes through all of them before the next one does
        for step in steps:
            if not self._left:
                return
            job = self._by_node.get(step.node)
            enters = any(node in self._left for node in _nodes_within(step))
            if job is not None or enters or mapped_bytes([*waiting, step]) > MAPPED:
                self._advance(waiting, runs, exact)
            if job is not None and job.key not in self.found:
                yield job.key, [Arrival(step, job.readers[step.node], runs, exact)]
                self._begin_exact(runs, exact)
            if enters:
                self._begin_exact(runs, exact)
                yield from self._into_branches(step, runs, exact)
                continue
            self._left.discard(step.node)
            if not self._left:
                return  # a head's logits would be the largest tensors of all
            waiting.append(step)
        self._advance(waiting, runs, exact)

    def _advance(self, waiting: list[Step], runs: Sequence[Run], exact: Sequence[Run]) -> None:
        """Run nodes that wait, of which the first may have a weight with codes; none wait any more."""
        if not waiting:
            return
        job = self._by_node.get(waiting[0].node)
        weight = None if job is None else _coded_weight(job, self.found[job.key].codes, wide=self.shelf is None)
        changed = None if job is None or weight is None else (job.weight, weight)
        advance_runs(waiting, runs, self.shelf, changed)
        del weight, changed
        advance_runs(waiting[1:] if waiting[0] in self._ahead else waiting, exact, self.shelf)
        waiting.clear()

    def _begin_exact(self, runs: Sequence[Run], exact: list[Run]) -> None:
        if not exact and self._corrects:
            exact += [run.copy() for run in runs]

    def _into_branches(self, step: Step, runs: list[Run], exact: list[Run]) -> Iterator[Pause]:
        """Advance samples through the branches of an `If` that they take, and behind it."""
        taken = [run.branch(step) for run in runs]
        walks = []
        for body in dict.fromkeys(taken):
            some = [index for index, one in enumerate(taken) if one is body]
            parts = [[those[index] for index in some if those] for those in (runs, exact)]
            for run in (*parts[0], *parts[1]):
                run.begin(body, {})
            walks.append(self._through(body.steps, *parts))
        self._left.difference_update(set(_nodes_within(step)).difference(*map(_nodes_of, dict.fromkeys(taken))))
        yield from _side_by_side(walks, self.jobs, self._left)
        if self._left:
            for run, body in zip((*runs, *exact), (*taken, *taken), strict=False):
                run.leave(step, body)
                run.drop(step)
            step.release_weights()

    def _rows(self, job: BlockJob, arrivals: Sequence[Arrival], measured: MeasuredInput) -> np.ndarray:
        """Return the weight to choose codes for, which compensates for the error of the layers before."""
        rows = job.finite_rows(arrivals[0].node)
        if not job.corrects or not all(arrival.pairs_up for arrival in arrivals):
            return rows

        def read() -> Iterator[Pair]:
            return _pairs(arrivals, [arrival.value for arrival in arrivals])

        if rows.size <= LEAST_SHARED and not self.large:
            return compensated(rows, read, measured.moments)
        if np.may_share_memory(rows, job.key[0].view()):
            rows = rows.copy()
        keep = np.asarray if self.shelf is None else self.shelf.keep

        def errors() -> CommonErrors:
            if self._pays_by_output(rows, arrivals, measured.moments):
                return OutputErrors(rows, lambda: _pairs(arrivals, self._run_ahead(arrivals)), measured.moments, keep)
            if measured.errors is None:
                measured.errors = InputErrors(read, measured.moments, keep)
            return measured.errors

        return compensated(rows, read, measured.moments, errors)

    def _pays_by_output(self, rows: np.ndarray, arrivals: Sequence[Arrival], moments: LayerMoments) -> bool:
        """Whether what layers give in the float model tells their errors in fewer products than what they read."""
        channels, n = rows.shape
        products = channels if moments.block >= n else 2 * channels
        return (
            self.large
            and products < n
            and channels <= moments.block  # no more is in memory than by what they read
            and all(arrival.node.op_type == "MatMul" and self._readers[arrival.value] == 1 for arrival in arrivals)
        )

    def _run_ahead(self, arrivals: Sequence[Arrival]) -> list[Value]:
        """Run layers in the float model, and return what they give."""
        for arrival in arrivals:
            advance_runs([arrival.step], arrival.exact, self.shelf)
            self._ahead.add(arrival.step)
        return [value for arrival in arrivals for value in arrival.node.outputs if value is not None]


def _pairs(arrivals: Sequence[Arrival], values: Sequence[Value]) -> Iterator[Pair]:
    """Visit what samples read in the quantized prefix, each with a value of the float model."""
    for arrival, value in zip(arrivals, values, strict=True):
        for run, other in zip(arrival.runs, arrival.exact, strict=True):
            one, two = run.values[arrival.value], other.values[value]
            yield one, two
            release_array(one)
            release_array(two)


def _side_by_side(
    walks: Sequence[Iterator[Pause]], jobs: Mapping[WeightKey, BlockJob], left: Collection[Node]
) -> Iterator[Pause]:
    """Advance several walks, and pause for the weight that the fewest layers have still to come to."""
    paused = {walk: pause for walk in walks if (pause := next(walk, None)) is not None}
    while paused:
        waiting: dict[WeightKey, list[Arrival]] = {}
        for key, arrivals in paused.values():
            waiting.setdefault(key, []).extend(arrivals)
        key = min(waiting, key=lambda one: len(jobs[one].readers.keys() & left) - len(waiting[one]))
        yield key, waiting[key]
        for walk in [walk for walk, pause in paused.items() if pause[0] == key]:
            pause = next(walk, None)
            if pause is None:
                del paused[walk]
            else:
                paused[walk] = pause


def _nodes_within(step: Step) -> Iterator[Node]:
    """Visit the nodes of a node's bodies."""
    for body in step.bodies.values():
        yield from _nodes_of(body)


def _nodes_of(body: NodeSchedule) -> Iterator[Node]:
    for step in body.steps:
        yield step.node
        yield from _nodes_within(step)


def mapped_bytes(steps: Sequence[Step]) -> int:
    """Return the bytes of weights in files that nodes read."""
    return sum(tensor.nbytes for step in steps for tensor in step.mapped)


def advance_runs(
    steps: Sequence[Step], runs: Sequence[Run], shelf: Shelf | None, changed: tuple[Value, np.ndarray] | None = None
) -> None:
    """Run nodes in several runs of one evaluator.

    Args:
        steps: The nodes, which follow each other.
        runs: Where each of them stands.
        shelf: Where live tensors are kept; in memory without one.
        changed: A weight and the array that stands in its place for the first node.

    """

    def compute(run: Run) -> Run:
        for index, step in enumerate(steps):
            if changed is not None and not index:
                before, run.values[changed[0]] = run.values[changed[0]], changed[1]
                run.compute(step)
                run.values[changed[0]] = before
            else:
                run.compute(step)
            run.drop(step)
        return run

    # Small tensors are soon computed: threads only pay where a file keeps the large ones
    for run in run_in_order(compute, runs) if shelf is not None else map(compute, runs):
        if shelf is not None:
            _put_away(run, steps, shelf)
    for step in steps:
        step.release_weights()


def _put_away(run: Run, steps: Sequence[Step], shelf: Shelf) -> None:
    """Move what nodes have left for others out of memory, and release the values that they have read."""
    for step in steps:
        for value in step.node.outputs:
            array = None if value is None else run.values.get(value)
            if value is not None and isinstance(array, np.ndarray):
                run.values[value] = shelf.keep(array)
        for value in step.reads:
            if isinstance(array := run.values.get(value), np.ndarray):
                release_array(array)


def _coded_weight(job: BlockJob, codes: BlockCodes, *, wide: bool) -> np.ndarray:
    """Return the weight that codes stand for, made some channels at a time."""
    rows = job.rows()
    parts = _parts(codes, job.coding.block_size)
    weight = rows.filled(parts, np.float64 if wide else np.float32)
    release_array(codes.codes)
    return weight


def _parts(codes: BlockCodes, block_size: int) -> Iterator[np.ndarray]:
    height = max(TOGETHER // max(codes.codes.shape[1], 1), 1)
    for start in range(0, len(codes.codes), height):
        part = slice(start, start + height)
        yield BlockCodes(codes.codes[part], codes.scales[part], codes.zeros[part]).dequantized(1, block_size)


def measured_input(arrivals: Sequence[Arrival], known: Inputs, *, large: bool) -> MeasuredInput:
    """Measure what layers read, once for weights that multiply the same.

    Args:
        arrivals: The layers that read one weight, with the samples that stand in front of them.
        known: What has been measured of these values, which is forgotten behind them.
        large: Whether to sum in float32.

    """
    unfolding = arrivals[0].way[1]
    alike = [arrival for arrival in arrivals if arrival.way[1] == unfolding]
    key = tuple(arrival.value for arrival in alike), unfolding
    if key not in known:
        known.clear()  # the largest thing in memory, and no earlier layer comes back
        dtype = np.float32 if large else np.float64
        moments = LayerMoments(unfolding, _columns(unfolding.n), dtype, extremes=False)
        for arrival in alike:
            for run in arrival.runs:
                moments.add(run.values[arrival.value])
                release_array(run.values[arrival.value])
        for half in moments.halves:
            half.flush()
        known[key] = MeasuredInput(moments)
    return known[key]


def _columns(n: int) -> int:
    """Return the columns of a block of H: all of them, or equal parts that no block of a weight lies across."""
    parts = -(-n // MOST_COLUMNS)
    return n if parts == 1 else -(-n // (parts * LARGEST_BLOCK)) * LARGEST_BLOCK


def round_on_moments(jobs: Sequence[BlockJob], layers: MeasuredLayers, stats: Stats) -> dict[WeightKey, BlockSolution]:
    """Choose codes for weights in blocks on statistics of the float model."""
    with working("round") as advance, single_threaded_blas():
        found = {}
        for job in jobs:
            rows = job.finite_rows(next(iter(job.readers)))
            found[job.key] = solve_blocks(
                rows, layers.moments(stats, *job.readers), job.coding.bits, job.coding.block_size
            )
            advance(len(found), len(jobs))
    return found
