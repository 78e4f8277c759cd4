"""Fuse a decomposed LayerNormalization: mean, variance and what they normalise become one operator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from onnxq.ir.graph import Graph, Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import Change, register_pass
from onnxq.ir.patch import Patch, named_after
from onnxq.ops.kernels.arrays import Array
from onnxq.simplify.regions.find_reduction_regions import find_regions
from onnxq.simplify.regions.reduction_region import MOST_ELEMENTS, Exit, Region, last_axes, pays, replace_region

OPSET = 17  # the first with LayerNormalization
TOLERANCE = 1e-5  # of the largest element of a row: float32 rounds on the way by more than that
PROBES = 12
STEP = 2.0**-20  # standard deviation of a probe of next to no variance, about 1e-6
LEAST_EPSILON = 1e-14  # below, an ε cannot be told from none: rows of equal elements would be divided by zero
ROOTS = frozenset(("Sqrt", "Pow", "ReduceL2"))


class NormParameters(NamedTuple):
    """γ and β, each with the lengths of the normalised axes and 1 for the others, and ε."""

    scale: Array
    shift: Array
    epsilon: float


@register_pass(order=140, note="fused {} decomposed LayerNormalization")
def fuse_layer_normalization(model: Model) -> Iterator[Change]:
    """Describe one change for each decomposed normalisation, in any spelling.

    y = γ(x − mean(x))/√(var(x) + ε) + β, over one or more axes. Rows of no variance, of hardly any and of some reveal
    ε, γ and β. More rows, in float64, verify the formula. The operator stands between two Transpose if the axes are
    not the last ones.
    """
    for graph in model.graph.graphs():
        yield from _in_graph(model, graph)


def _in_graph(model: Model, graph: Graph) -> Iterator[Change]:
    taken: set[Node] = set()
    for region in find_regions(model, graph):
        found = _recognise(region, taken)
        if found is not None:
            exit, parameters = found
            taken.update(step.node for step in exit.steps)
            patch = replace_region(region, exit, "it is a layer normalization")
            _write(patch, region, exit, parameters)
            yield Change(patch, opset=OPSET)


def _recognise(region: Region, taken: set[Node]) -> tuple[Exit, NormParameters] | None:
    """Find the last value of a region that is its entry normalised."""
    lengths = [region.shape[axis] for axis in region.axes]
    count = math.prod(size for size in lengths if isinstance(size, int))
    known = all(isinstance(size, int) for size in lengths)
    if not known or count < 2 or not pays(region, region.axes):
        return None
    if not any(step.node.op_type in ROOTS for step in region.steps):
        return None
    for exit in region.exits(taken):
        shape = region.probe_shape(exit.steps)
        if PROBES * math.prod(shape) <= MOST_ELEMENTS:
            rows = _rows(shape, region.axes)
            result = region.run(exit.steps, rows)
            parameters = _solve(rows, result, region) if result is not None else None
            if parameters is not None:
                return exit, parameters
    return None


def _rows(shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return probes [probe, *shape]: zeros, two of a known direction, rows of several means and variances."""
    size = [length if axis in axes else 1 for axis, length in enumerate(shape)]
    count = int(np.prod(size))
    index = np.arange(count)
    direction = np.where(index % 2, -1.0, 1.0) * (1 + index % 5 / 8)  # no element is the mean
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((PROBES - 3, count))
    spread = np.array([[1e-4], [1e-3], [0.02], [1], [5], [200], [1e5], [1e10], [1e18]])  # variances up to float32's end
    offset = spread * np.array([[0], [-2], [2.5], [3], [-2], [0.5], [0], [1], [-1]])
    rows = np.concatenate([np.zeros((1, count)), STEP * direction[None], direction[None], noise * spread + offset])
    return np.array(np.broadcast_to(rows.reshape(len(rows), *size), (len(rows), *shape)))


def _solve(rows: Array, result: Array, region: Region) -> NormParameters | None:
    """Find γ, β and ε from the first three probes, and try them on all."""
    axes = tuple(axis + 1 for axis in region.axes)
    others = tuple(axis for axis in range(1, rows.ndim) if axis not in axes)
    y = np.broadcast_to(result, rows.shape)
    if not np.isfinite(y).all():
        return None
    for axis in others:
        if (y != y.take([0], axis)).any():
            return None  # γ or β differs between rows
        y, rows = y.take([0], axis), rows.take([0], axis)
    shift = y[0]
    centred = rows - rows.mean(axes, keepdims=True)
    variance = (centred**2).mean(axes, keepdims=True)
    slopes = (y[1:3] - shift) / centred[1:3]
    strongest = np.argmax(np.abs(slopes[1]))
    low, high = slopes[0].flat[strongest], slopes[1].flat[strongest]
    if high == 0 or low == 0:
        return None
    ratio = (low / high) ** 2  # (var₂ + ε) / (var₁ + ε)
    small, large = float(variance[1].squeeze()), float(variance[2].squeeze())
    epsilon = float(np.float32((large - ratio * small) / (ratio - 1))) if ratio > 1 else 0.0
    if not epsilon >= LEAST_EPSILON:
        return None
    dtype = np.float32 if region.entry.dtype == 1 else np.float64
    scale = (slopes[1] * np.sqrt(large + epsilon)).astype(dtype)
    shift = shift.astype(dtype)
    expected = centred / np.sqrt(variance + epsilon) * scale + shift
    error, size = (np.abs(a).max(axes, keepdims=True) for a in (y - expected, expected))
    return NormParameters(scale, shift, epsilon) if (error <= TOLERANCE * size).all() else None


def _write(patch: Patch, region: Region, exit: Exit, parameters: NormParameters) -> None:
    """Describe the operator, between two Transpose where the axes are not the last ones."""
    name, rank, last = exit.value.name, len(region.shape), last_axes(region, region.axes)
    axes = last or list(region.axes)
    order = [axis for axis in range(rank) if axis not in axes] + axes
    lengths = [parameters.scale.shape[axis] for axis in axes]
    source = region.entry if last else patch.op("Transpose", region.entry, hint=f"{name}_turned", perm=order)
    inputs = [source, patch.constant(parameters.scale.reshape(lengths), f"{name}_scale")]
    if parameters.shift.any():
        inputs.append(patch.constant(parameters.shift.reshape(lengths), f"{name}_shift"))
    hint = name if last else f"{name}_normalized"
    result = patch.op("LayerNormalization", *inputs, hint=hint, axis=rank - len(axes), epsilon=parameters.epsilon)
    named_after(patch, exit.steps[-1].node)
    if not last:
        result = patch.op("Transpose", result, hint=name, perm=[order.index(axis) for axis in range(rank)])
    patch.replace(exit.value, result)
