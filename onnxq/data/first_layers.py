"""Find the first layers behind an input, and measure what they make of samples.

A BatchNormalization that was folded into a convolution leaves `beta - mean * gamma / deviation` in the bias of a
channel. The `mean` there is what the filter made of the training data. So biases of trained models nearly cancel what
filters make of right samples, in all layers. Values of another range or mean make something else.

Tests: `tests/data/test_normalization.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxq.data.validation import Sample
from onnxq.evaluator.engine import Evaluator
from onnxq.ir import Model, Node, Value
from onnxq.ir.segment import Segment
from onnxq.ir.topological_order import needed_nodes, reads
from onnxq.ops.forms.integer_domain import MOVERS
from onnxq.runtime.in_memory import encode_part
from onnxq.runtime.session import open_session, run_session

AFFINE = ("Conv", "MatMul", "Gemm")
SHAPES = ("Shape", "Size")  # whose results do not depend on values
MOST_BOUND = 1e3  # of a Clip that stands for an activation
MOST_LAYERS, MOST_NORMALIZATIONS = 3, 4
MOST_FOLDED, LEAST_CHANNELS = 8, 8  # convolutions to look at, and channels of one
LEAST_NORM = 1e-2  # of a filter, as a share of the median: those below are dead
OUTLIER = 3.0  # times the median bias, from which on a channel counts no more
NEVER = 1e-4  # a channel whose variance is this small a share of the usual one is dead


@dataclass
class FirstLayers:
    """The first layers behind an input, a few of each kind, in graph order.

    Attributes:
        affine: Convolutions and products with constant weights that depend on this input alone.
        normalizations: BatchNormalization nodes with constant statistics that depend on this input alone.
        shared: BatchNormalization nodes that depend on other inputs as well.
        bounded: Activations with a greatest value that depend on this input alone, but for those that give outputs:
            scores of rare events are at their bound, whatever the samples' scale.

    """

    affine: list[Node] = field(default_factory=list)
    normalizations: list[Node] = field(default_factory=list)
    shared: list[Node] = field(default_factory=list)
    bounded: list[Node] = field(default_factory=list)


def first_layers(model: Model, name: str, most: int = MOST_LAYERS) -> FirstLayers:
    """Find the first layers that depend on an input.

    Args:
        model: The float model, its constants lifted.
        name: Name of the input.
        most: How many convolutions and products.

    """
    found = FirstLayers()
    read: dict[Value, frozenset[str]] = {v: frozenset([v.name]) for v in model.graph.inputs if v.tensor is None}
    for node in model.graph.nodes:
        inputs = node.reads if node.op_type not in SHAPES else []
        names = frozenset[str]().union(*(read.get(value, frozenset()) for value in inputs))
        read.update(dict.fromkeys(node.makes, names))
        if name not in names or node.is_body_holder or node.domain:
            continue
        if node.op_type in AFFINE and names == {name} and _has_constants(node, 1):
            found.affine.append(node)
        elif node.op_type == "Add" and found.affine and node.inputs[0] in found.affine[-1].outputs:
            found.affine[-1] = node if _has_constants(node, 1) else found.affine[-1]  # the bias of a MatMul
        elif names == {name} and upper_bound(node) is not None and not _gives_output(node):
            found.bounded.append(node)
        elif node.op_type == "BatchNormalization" and _has_constants(node, 3, 4):
            (found.normalizations if names == {name} else found.shared).append(node)
    return FirstLayers(
        found.affine[:most],
        found.normalizations[:MOST_NORMALIZATIONS],
        found.shared[:MOST_NORMALIZATIONS],
        found.bounded[:1],
    )


def _gives_output(node: Node) -> bool:
    """Whether a node makes an output of the model, which others may move elsewhere."""
    made = node.makes
    readers = (reader for value in made for reader in value.consumers())
    return any(value.is_output for value in made) or any(
        reader.op_type in (*MOVERS, "Identity") and not reader.domain and _gives_output(reader) for reader in readers
    )


def upper_bound(node: Node) -> float | None:
    """Return the greatest value that an activation can have; None where it has none."""
    if node.op_type in ("Sigmoid", "Tanh", "HardSigmoid"):
        return 1.0
    if node.op_type != "Clip":
        return None
    stored = node.constant(2)
    bound = node.attribute("max") if stored is None else float(stored.numpy().reshape(()))
    return float(bound) if bound is not None and bound < MOST_BOUND else None


def saturated_share(taps: LayerInputs, samples: Sequence[Sample], node: Node) -> float:
    """Return the share of an activation's values that are at its bounds, to a hundredth: both of them but for Clip."""
    bound, values = upper_bound(node), node.makes
    if bound is None:
        return 0.0
    made = _joined(taps.run(samples, values))[0]
    least = {"Tanh": -bound, "Sigmoid": 0.0, "HardSigmoid": 0.0}.get(node.op_type)
    at_bound = made >= bound - 0.01 * abs(bound)
    return float((at_bound if least is None else at_bound | (made <= least + 0.01)).mean()) if made.size else 0.0


def _has_constants(node: Node, *slots: int) -> bool:
    return all(node.constant(slot) is not None for slot in slots)


class LayerInputs:
    """Runs what a model computes up to some values.

    Args:
        model: The float model.

    Raises:
        ModelError: It cannot be evaluated.

    """

    def __init__(self, model: Model) -> None:
        self._evaluator = Evaluator(model)

    def run(self, samples: Sequence[Sample], values: Sequence[Value]) -> Iterator[list[np.ndarray]]:
        """Yield the values of each sample.

        Raises:
            ModelError: A node cannot be evaluated.

        """
        for sample in samples:
            found: dict[Value, np.ndarray] = {}
            taps: dict[str | Value, Callable[[np.ndarray], None]] = {value: _keep(found, value) for value in values}
            with np.errstate(all="ignore"):
                self._evaluator.run(sample, [], taps)
            yield [found[value] for value in values]


def _keep(found: dict[Value, np.ndarray], value: Value) -> Callable[[np.ndarray], None]:
    return lambda array: found.__setitem__(value, array)


class ModelPart:
    """Runs in onnxruntime what some values of a model need, and no more.

    Args:
        model: The float model, its types inferred.
        values: What to give; inputs of the model, too.

    Raises:
        SessionError: onnxruntime cannot load it.

    """

    def __init__(self, model: Model, values: Sequence[Value]) -> None:
        self._values = values
        made = [value for value in dict.fromkeys(values) if not value.is_input]
        self._names = [value.name for value in made]
        part = _part_for(model, made)
        self._inputs = [value.name for value in part.inputs]
        self._session = open_session(encode_part(model, part)) if made else None

    def run(self, samples: Iterable[Sample]) -> Iterator[list[np.ndarray]]:
        """Yield the values of each sample.

        Raises:
            SessionError: onnxruntime cannot run it.

        """
        for sample in samples:
            found = dict(sample)
            if self._session is not None:
                made = run_session(self._session, self._names, {name: sample[name] for name in self._inputs})
                found |= dict(zip(self._names, made, strict=True))
            yield [found[value.name] for value in self._values]


class BatchnormInputs:
    """Compares what BatchNormalization nodes read with their running mean and variance.

    Args:
        model: The float model, its types inferred.
        nodes: The nodes, their statistics constant.

    Raises:
        SessionError: onnxruntime cannot load what is in front of them.

    """

    def __init__(self, model: Model, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._part = ModelPart(model, [value for node in nodes for value in node.inputs[:1] if value is not None])

    def misfit(self, samples: Iterable[Sample]) -> float:
        """Return how far what the nodes read is from their statistics.

        For a channel with mean m and deviation s of what is read, and μ and σ of the node, the distance is
        |ln(s / σ)| + |m - μ| / max(s, σ). The median over all channels is returned: 0 for what a model was trained
        with, 5.5 for values 255 times as large, infinity for values that overflow. Dead channels are left out.

        Raises:
            SessionError: onnxruntime cannot run them.

        """
        moments = [_Moments() for _ in self._nodes]
        with np.errstate(invalid="ignore", over="ignore"):  # float16 overflows for values of other conventions
            for arrays in self._part.run(samples):
                for one, array in zip(moments, arrays, strict=True):
                    one.add(array)
            joined = np.concatenate([_distances(node, one) for node, one in zip(self._nodes, moments, strict=True)])
        if not joined.size:
            return 0.0
        return float(np.median(joined)) if np.isfinite(joined).all() else math.inf


@dataclass
class _Moments:
    """Sums of what a node reads, by channel: the second axis."""

    count: int = 0
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0

    def add(self, array: np.ndarray) -> None:
        rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1).astype(np.float64)
        self.count += rows.shape[1]
        self.total = self.total + rows.sum(axis=1)
        self.squares = self.squares + (rows**2).sum(axis=1)


def _distances(node: Node, read: _Moments) -> np.ndarray:
    stored = [value.constant for value in node.inputs[3:5] if value is not None]
    mean, variance = (tensor.numpy().astype(np.float64) for tensor in stored if tensor is not None)
    own = read.total / max(read.count, 1)
    spread = np.maximum(read.squares / max(read.count, 1) - own**2, 0)
    alive = variance > NEVER * np.median(variance)
    floor = 1e-12 * variance + 1e-300
    distances = 0.5 * np.abs(np.log(np.maximum(spread, floor) / np.maximum(variance, floor)))
    distances += np.abs(own - mean) / np.sqrt(np.maximum(np.maximum(spread, variance), 1e-300))
    return np.asarray(distances[alive])


@dataclass(frozen=True)
class Influence:
    """How much an input moves a layer that has a bias, or comes behind one that has.

    Attributes:
        layer: The layer.
        moved: |a(x) - a(0)| / |a(x)|, a being what the layer makes: below 0.05 the bias is all there is.
        bent: |n·a(x / n) - a(x)| / |a(x)|, with n 128: near 0 the bias is lost in the values.

    """

    layer: Node
    moved: float
    bent: float


FRACTION = 128.0


def influences(taps: LayerInputs, samples: Sequence[Sample], nodes: Sequence[Node], name: str) -> list[Influence]:
    """Measure how much an input moves the layers that have a bias before or in them.

    Values that a model was trained with and its biases are of one order. Far below, the bias is all that a layer
    makes; far above, the layer is proportional to the input, and its bias is lost.

    Args:
        taps: Of the float model.
        samples: A few samples.
        nodes: Affine layers behind the input and no other one.
        name: Of the input.

    """
    values = [node.outputs[0] for node in nodes]
    kept = [value for value in values if value is not None]
    squares = np.zeros((len(kept), 4))
    whole_and_part = (taps.run(_changed(samples, name, factor), kept) for factor in (1.0, 1 / FRACTION))
    runs = [*whole_and_part, _run_once(taps, _changed(samples, name, 0.0), kept)]
    for sample in zip(*runs, strict=True):
        for layer, (whole, part, none) in enumerate(zip(*sample, strict=True)):
            if whole.shape == none.shape == part.shape:
                with np.errstate(all="ignore"):  # float16 that overflows says nothing
                    squares[layer] += [_squares(one) for one in (whole, none, whole - none, FRACTION * part - whole)]
            else:  # the input decides about lengths
                squares[layer] = np.nan
    found = []
    for node, (size, alone, moved, bent) in zip(nodes, np.sqrt(squares).tolist(), strict=True):
        if np.isfinite(size) and size and alone > 1e-6 * size:
            found.append(Influence(node, moved / size, bent / size))
    return found


def _run_once(taps: LayerInputs, samples: Sequence[Sample], values: Sequence[Value]) -> Iterator[list[np.ndarray]]:
    """Yield the values of each sample; one that equals the last is not run again, as where its input is all zeros."""
    last: Sample | None = None
    found: list[np.ndarray] = []
    for sample in samples:
        if last is None or any(not np.array_equal(sample[name], last[name]) for name in sample):
            (found,) = taps.run([sample], values)
        last = sample
        yield found


def _squares(array: np.ndarray) -> float:
    """Sum the squares of an array in float64."""
    flat = array.reshape(-1)
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64))


def _changed(samples: Sequence[Sample], name: str, factor: float) -> list[Sample]:
    return [{**sample, name: (sample[name] * factor).astype(sample[name].dtype)} for sample in samples]


def _joined(runs: Iterator[list[np.ndarray]]) -> list[np.ndarray]:
    """Join what the samples gave for each value, in float64 without axes."""
    return [
        np.concatenate([array.ravel().astype(np.float64) for array in column]) for column in zip(*runs, strict=True)
    ]


def replaced(samples: Sequence[Sample], name: str, change: Callable[[np.ndarray], np.ndarray]) -> list[Sample]:
    """Return the samples with other values of one input."""
    return [{**sample, name: change(sample[name])} for sample in samples]


def varied(samples: Sequence[Mapping[str, np.ndarray]], name: str, least: int = 16) -> bool:
    """Whether an input holds at least so many floats, finite ones and not all the same."""
    arrays = [sample[name] for sample in samples]
    if not all(array.dtype.kind == "f" and array.size >= least and np.isfinite(array).all() for array in arrays):
        return False
    return min(float(array.min()) for array in arrays) < max(float(array.max()) for array in arrays)


@dataclass(frozen=True)
class FoldedLayer:
    """A convolution with a bias.

    Attributes:
        name: Of its node.
        value: What it makes.
        bias: By channel.
        scale: What each channel is multiplied by to be compared with others: 1 by the length of its filter.

    """

    name: str
    value: Value
    bias: np.ndarray
    scale: np.ndarray


def folded_layers(affine: Iterable[Node]) -> list[FoldedLayer]:
    """Find convolutions with a bias of their own, or an Add behind them.

    Args:
        affine: Layers behind an input, as `first_layers` gives them.

    """
    found = (_folded(node) for node in affine)
    return [layer for layer in found if layer is not None]


def _folded(node: Node) -> FoldedLayer | None:
    conv = node.inputs[0].producer if node.op_type == "Add" and node.inputs[0] is not None else node
    if conv is None or conv.op_type != "Conv" or node.outputs[0] is None:
        return None
    weight = _constant(conv, 1)
    bias = _constant(conv, 2) if conv is node else _constant(node, 1)
    if weight is None or bias is None or (conv is not node and _constant(conv, 2) is not None):
        return None
    if bias.size != len(weight) or bias.size < LEAST_CHANNELS:
        return None
    norms = np.sqrt((weight.reshape(len(weight), -1) ** 2).sum(axis=1))
    alive = norms > LEAST_NORM * np.median(norms)
    scale = np.divide(alive, norms, out=np.zeros_like(norms), where=alive)
    sizes = np.abs(bias.ravel() * scale)
    most = OUTLIER * float(np.median(sizes[alive])) if alive.any() else 0.0
    scale *= np.divide(most, sizes, out=np.ones_like(sizes), where=sizes > most)
    return FoldedLayer(node.display_name, node.outputs[0], bias.ravel(), scale) if most else None


def _constant(node: Node, slot: int) -> np.ndarray | None:
    tensor = node.constant(slot)
    return tensor.numpy().astype(np.float64) if tensor is not None else None


class FoldedMeans:
    """Compares biases with what convolutions make of samples.

    Args:
        model: The float model, its types inferred.
        layers: The convolutions, at least one.

    Raises:
        SessionError: onnxruntime cannot load them.

    """

    def __init__(self, model: Model, layers: Sequence[FoldedLayer]) -> None:
        self._layers = layers
        self._part = ModelPart(model, [layer.value for layer in layers])

    def unexplained(self, samples: Iterable[Sample]) -> np.ndarray:
        """Return for each layer the squares that are left of its biases and means together, as a share of the biases'.

        0: they cancel out. 1: the means are small compared with the biases.

        Raises:
            SessionError: onnxruntime cannot run the convolutions.

        """
        totals: list[np.ndarray | float] = [0.0] * len(self._layers)
        counts = [0] * len(self._layers)
        for made in self._part.run(samples):
            for place, array in enumerate(made):
                rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)
                totals[place] = totals[place] + rows.sum(axis=1, dtype=np.float64)
                counts[place] += rows.shape[1]
        shares = []
        for layer, total, count in zip(self._layers, totals, counts, strict=True):
            left = ((total / max(count, 1) * layer.scale) ** 2).sum()
            shares.append(left / ((layer.bias * layer.scale) ** 2).sum())
        return np.asarray(np.nan_to_num(np.asarray(shares), nan=np.inf))


def _part_for(model: Model, wanted: Collection[Value]) -> Segment:
    """Return the nodes of a model that some values need."""
    nodes = needed_nodes(model.graph, wanted)
    read = dict.fromkeys(value for node in nodes for value in reads(node))
    return Segment(
        nodes,
        [value for value in read if value.tensor is not None],
        [value for value in read if value.tensor is None and value.is_input],
        list(wanted),
    )
