"""If, Loop, Scan and SequenceMap: https://onnx.ai/onnx/operators/onnx__Loop.html, onnx__Scan.html.

A body arrives as a function: it is called with the values of its inputs and gives the values of its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from onnxq.errors import ModelError
from onnxq.ops.kernels.arrays import Array, normalize_axis
from onnxq.ops.kernels.registry import kernel


class Body(Protocol):
    """A graph of a control flow node, ready to run."""

    @property
    def count(self) -> int:
        """Number of its outputs."""
        ...

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run it."""
        ...

    def empty_output(self, index: int) -> Array:
        """Return a tensor [0, ...] for a stack of output number `index` when the body never ran."""
        ...


@kernel("If")
def if_(condition: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    """Run one of two bodies."""
    return tuple((then_branch if truth(condition) else else_branch)())


def truth(condition: Array) -> bool:
    """Return the one element of a condition."""
    if np.size(condition) != 1:
        raise ModelError(f"the condition has shape {list(np.shape(condition))}, not one element", "Reduce it first.")
    return bool(np.asarray(condition).reshape(())[()])


@kernel("Loop")
def loop(
    trip_count: Array | None = None, condition: Array | None = None, *state: Any, body: Body, output_count: int = 1
) -> tuple[Any, ...]:
    """Run a body until the trip count is reached or its condition fails; stack its results other than the state."""
    limit = None if trip_count is None else int(np.asarray(trip_count).reshape(())[()])
    proceed = True if condition is None else truth(condition)
    carried = list(state)
    stacks: list[list[Array]] = [[] for _ in range(max(output_count - len(carried), 0))]
    step = 0
    while proceed and (limit is None or step < limit):
        flag, *results = body(np.asarray(step, np.int64), np.asarray(proceed), *carried)
        proceed = truth(flag)
        carried = results[: len(state)]
        for stack, item in zip(stacks, results[len(state) :], strict=False):
            stack.append(item)
        step += 1
    first = 1 + len(state)
    return (*carried, *(np.stack(s) if s else body.empty_output(first + i) for i, s in enumerate(stacks)))


@kernel("Scan", since=9)
def scan(
    *inputs: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    output_count: int = 1,
) -> tuple[Any, ...]:
    """Run a body for each slice of the scanned inputs; stack the outputs behind its state.

    Raises:
        ModelError: The scanned inputs differ in length.

    """
    split = len(inputs) - num_scan_inputs
    carried, scanned = list(inputs[:split]), inputs[split:]
    in_axes = scan_input_axes or [0] * num_scan_inputs
    in_directions = scan_input_directions or [0] * num_scan_inputs
    rows = [np.moveaxis(x, normalize_axis(axis, x.ndim), 0) for x, axis in zip(scanned, in_axes, strict=True)]
    rows = [np.flip(x, 0) if backwards else x for x, backwards in zip(rows, in_directions, strict=True)]
    lengths = {x.shape[0] for x in rows}
    if len(lengths) != 1:
        raise ModelError(f"the scanned inputs have lengths {sorted(lengths)}", "They must agree.")
    stacks: list[list[Array]] = [[] for _ in range(output_count - split)]
    for step in range(lengths.pop()):
        results = body(*carried, *(np.asarray(x[step]) for x in rows))
        carried = results[:split]
        for stack, item in zip(stacks, results[split:], strict=False):
            stack.append(item)
    out_axes = scan_output_axes or [0] * len(stacks)
    out_directions = scan_output_directions or [0] * len(stacks)
    outputs = []
    for i, (stack, axis, backwards) in enumerate(zip(stacks, out_axes, out_directions, strict=True)):
        joined = np.stack(stack[::-1] if backwards else stack) if stack else body.empty_output(split + i)
        outputs.append(np.moveaxis(joined, 0, normalize_axis(axis, joined.ndim)))
    return (*carried, *outputs)


@kernel("Scan", since=8)
def scan_8(
    lengths: Array | None,
    *inputs: Any,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    output_count: int = 1,
) -> tuple[Any, ...]:
    """Scan of version 8: every input has a batch axis in front, and samples may differ in length."""
    split = len(inputs) - num_scan_inputs
    samples = []
    for sample in range(inputs[0].shape[0]):
        longest = inputs[split].shape[1]
        steps = longest if lengths is None else int(lengths[sample])
        scanned = [x[sample][:steps] for x in inputs[split:]]
        state = [np.asarray(x[sample]) for x in inputs[:split]]
        results = scan(
            *state, *scanned, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions,
            output_count=output_count,
        )  # fmt: skip
        stacks = [np.pad(x, [(0, longest - steps)] + [(0, 0)] * (x.ndim - 1)) for x in results[split:]]
        samples.append((*results[:split], *stacks))
    return tuple(np.stack(column) for column in zip(*samples, strict=True))


@kernel("SequenceMap", since=17)
def sequence_map(sequence: list[Any], *others: Any, body: Body) -> tuple[list[Any], ...]:
    """Run a body for each item of a sequence, with the same item of other sequences; tensors are passed whole."""
    rows = [
        body(item, *(other[i] if isinstance(other, list) else other for other in others))
        for i, item in enumerate(sequence)
    ]
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else tuple([] for _ in range(body.count))
