"""Figures for a full report: kernels, time by operator, size by layer, and limits that were kept.

Tests: `tests/report/test_report_details.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from onnxq.errors import OnnxqError
from onnxq.ir import Model, Node, Value
from onnxq.planning.benchmark import kernel_times
from onnxq.runtime.ort_session import ORT_ERRORS
from onnxq.verification.ort_graph import CONVERSIONS, read_fusion
from onnxq.verification.records import Comparison

TIMING_SECONDS = 0.3  # for the runs of each model, though not fewer than four
CONVERTING = "conversions"
# Operators of kernels that have other names; the source is ContribOperators.md of onnxruntime
KERNELS = {
    "QGemm": "Gemm",
    "ConvInteger": "Conv",
    "MatMulInteger": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "MatMulNBits": "MatMul",
    "GatherBlockQuantized": "Gather",
}
PREFIXES = ("DynamicQuantize", "QLinear", "Nhwc", "Fused", "Q")
BETWEEN = (*CONVERSIONS, "Cast", "Mul", "Transpose", "Reshape", "Unpack")  # may stand between a weight and its layer


@dataclass(frozen=True)
class OperatorTime:
    """Time of one operator in a run of both models on the first sample, on one thread.

    Attributes:
        operator: Its name in the float model; `conversions` of QuantizeLinear and DequantizeLinear.
        float_ms, quantized_ms: Milliseconds of all its nodes.

    """

    operator: str
    float_ms: float
    quantized_ms: float


@dataclass(frozen=True)
class LayerSize:
    """Bytes of the constants of one layer.

    Attributes:
        node: The layer by name.
        op_type: Its operator.
        float_bytes, quantized_bytes: Of its weights, and of their scales and zero points.

    """

    node: str
    op_type: str
    float_bytes: int
    quantized_bytes: int


@dataclass(frozen=True)
class Limit:
    """A limit of the result, and what was reached.

    Attributes:
        what: What is limited.
        asked: The limit, in words.
        reached: The figure, in words.
        passed: Whether the limit is kept.

    """

    what: str
    asked: str
    reached: str
    passed: bool


def kernels_of(encoded: bytes) -> dict[str, int]:
    """Count the nodes of each kernel that onnxruntime makes of a quantized model; nothing where it makes none."""
    try:
        return read_fusion(encoded).kernels
    except OnnxqError:
        return {}


def operator_times(float_model: bytes, quantized: bytes, sample: Mapping[str, Any]) -> tuple[OperatorTime, ...]:
    """Time both models by operator, the one with most time in either first; nothing where one cannot be run.

    Args:
        float_model: The float model, weights inside.
        quantized: The quantized one.
        sample: What they run on.

    """
    try:
        found = [by_operator(kernel_times(model, sample, TIMING_SECONDS)) for model in (float_model, quantized)]
    except ORT_ERRORS:
        return ()
    first, second = found
    made = [OperatorTime(name, first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}]
    return tuple(sorted(made, key=lambda one: (-max(one.float_ms, one.quantized_ms), one.operator)))


def by_operator(times: Mapping[str, float]) -> dict[str, float]:
    """Add up nanoseconds of kernels by the operator of a float model, in milliseconds."""
    found: dict[str, float] = defaultdict(float)
    for kernel, taken in times.items():
        found[operator_of(kernel)] += taken / 1e6
    return dict(found)


def operator_of(kernel: str) -> str:
    """Return the operator that a kernel computes: `Conv` of `QLinearConv`."""
    if kernel in CONVERSIONS:
        return CONVERTING
    if kernel in KERNELS:
        return KERNELS[kernel]
    for prefix in PREFIXES:
        if kernel.startswith(prefix) and kernel[len(prefix) : len(prefix) + 1].isupper():
            return operator_of(kernel.removeprefix(prefix))
    return kernel


def layer_sizes(float_model: Model, quantized: Model) -> tuple[LayerSize, ...]:
    """Compare the bytes of constants that a layer reads in both models, the largest first.

    A layer is found again by its name and by that of its output. Nodes before it belong to it, up to values that the
    float model has, too: one of them may hold the codes.
    """
    named = {node.name: node for node in quantized.graph.walk() if node.name}
    made = {value.name: value for node in quantized.graph.walk() for value in node.makes}
    ends: dict[Node, tuple[Node, ...]] = {}
    known = {value.name for value in float_model.graph.inputs}
    for node in float_model.graph.walk():
        outputs = [value.name for value in node.makes]
        makers = [_maker(made.get(name)) for name in outputs]
        ends[node] = tuple(dict.fromkeys(end for end in (named.get(node.name), *makers) if end is not None))
        known.update(outputs)
    homes = {end: node for node in reversed(ends) for end in ends[node]}
    found = []
    for node, starts in ends.items():
        before = sum(_constant_bytes(node))
        if before and starts:
            own = {value.name for value in node.makes}
            others = frozenset(end for end, home in homes.items() if home is not node)
            after = sum(_region_bytes([end for end in starts if end not in others], known - own, others))
            found.append(LayerSize(node.display_name, node.operator, before, after))
    return tuple(sorted(found, key=lambda one: (-one.float_bytes, one.node)))


def _maker(value: Value | None) -> Node | None:
    """Return the node that computes a value, before it is quantized and dequantized."""
    while value is not None and value.producer is not None and value.producer.op_type in CONVERSIONS:
        value = value.producer.inputs[0]
    return None if value is None else value.producer


def _region_bytes(starts: Sequence[Node], known: Set[str], others: Set[Node]) -> Iterator[int]:
    """Yield the bytes of constants that nodes read, and those before them up to other layers or known values."""
    nodes: set[Node] = set()
    tensors: set[Value] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node in nodes:
            continue
        nodes.add(node)
        first = node.input(0)
        of_values = node.op_type in CONVERSIONS and first is not None and not _is_constant(first)
        for value in node.reads:
            if value.tensor is not None:
                if value not in tensors and not of_values:  # scales of activations belong to no layer
                    tensors.add(value)
                    yield value.tensor.nbytes
            elif value.producer is not None and value.name not in known and value.producer not in others:
                waiting.append(value.producer)


def _constant_bytes(node: Node) -> Iterator[int]:
    seen: set[Value] = set()
    waiting = node.reads
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.tensor is not None:
            yield value.tensor.nbytes
        elif value.producer is not None and value.producer.op_type in BETWEEN and _is_constant(value):
            waiting += value.producer.reads


def _is_constant(value: Value) -> bool:
    """Whether a value is computed from constants alone, by what may stand between a weight and its layer."""
    if value.tensor is not None:
        return True
    producer = value.producer
    if producer is None or producer.op_type not in BETWEEN:
        return False
    return all(each is None or _is_constant(each) for each in producer.inputs)


def limits_kept(
    comparison: Comparison | None,
    size: int | None,
    *,
    min_sqnr: float | None = None,
    max_drop: float | None = None,
    max_size: int | None = None,
) -> tuple[Limit, ...]:
    """Say of each limit that was asked for what was reached.

    Args:
        comparison: Float against quantized; None where nothing ran.
        size: Bytes of the quantized model.
        min_sqnr: Least signal-to-quantization-noise ratio of every output in dB.
        max_drop: How far the metric may fall.
        max_size: Most bytes.

    """
    found = []
    if min_sqnr is not None and comparison is not None:
        worst = comparison.worst_sqnr
        reached = "equal" if worst == math.inf else f"{worst:.1f} dB"
        found.append(Limit("SQNR of every output", f"at least {min_sqnr:g} dB", reached, worst >= min_sqnr))
    if max_drop is not None and comparison is not None and comparison.metric is not None:
        drop = comparison.metric.drop
        found.append(Limit(comparison.metric.name, f"a drop of at most {max_drop:g}", f"{drop:.4g}", drop <= max_drop))
    if max_size is not None and size is not None:
        found.append(Limit("size", f"at most {max_size:,} bytes", f"{size:,} bytes", size <= max_size))
    return tuple(found)
