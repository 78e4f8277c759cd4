"""Write Q/DQ pairs, stored weights and constants, each once for all of its readers.

Tests: `tests/lowering/test_rewrite.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxq.calibration.activation_qparams import array_qparams
from onnxq.calibration.qparams import CODE_TYPES, TINY, QParams
from onnxq.ir import ArrayTensor, Graph, Node, Patch, Tensor, Value
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.ops.forms.family import QuantizedForm
from onnxq.ops.forms.per_row_scales import unfolded
from onnxq.ops.forms.saturating_pairs import could_saturate
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.ort_workarounds import computed_in_codes
from onnxq.planning.planner import Plan
from onnxq.rounding.saturation_limits import summed_pairs
from onnxq.rounding.tied_tables import tied_tables
from onnxq.rounding.weights import Weights, WeightSpec

LARGEST = 1e30  # of a scale that is no longer that of its codes: what onnxruntime divides it by leaves it finite


class SharedNodes:
    """Nodes that several layers share: one DynamicQuantizeLinear or Q/DQ pair per value, one stored form per weight."""

    def __init__(self, plan: Plan, qparams: Mapping[Value, QParams], weights: Weights) -> None:
        self.plan = plan
        self.qparams = qparams
        self.weights = weights
        self.made: dict[tuple[Graph, Value, str], tuple[Value, ...]] = {}
        self.dequantized: dict[tuple[Graph, Value], Value] = {}
        self.stored: dict[tuple[Value, tuple[int, ...], Scheme], Value] = {}
        self.constants: dict[tuple[Graph, str], list[Value]] = {}
        self.outer: dict[Graph, QuantizingPatch] = {}
        self.tied = tied_tables(plan)


class QuantizingPatch(Patch):
    """A patch that knows how quantization writes things down; the `Rewriter` of the operator families."""

    def __init__(
        self, graph: Graph, node: Node | None, label: str, shared: SharedNodes, scheme: Scheme | None = None
    ) -> None:
        super().__init__(graph, node, f"quantize {label}")
        self._scheme = scheme or Scheme()
        self.produced: Value | None = None  # what stands for an output that is still to be quantized
        self._label = label
        self._shared = shared

    @property
    def output_quantized(self) -> bool:
        """Whether the node's own output is read through a Q/DQ pair."""
        return self.anchor is not None and self.anchor in self._shared.plan.outputs

    def replace(self, old: Value, new: Value) -> None:
        """Let every reader of `old` have `new`; an output that is quantized waits for its pair."""
        plan, node = self._shared.plan, self.anchor
        if node is not None and node in plan.outputs and old is node.outputs[0] and self.produced is None:
            quantized = plan.outputs[node]
            if quantized is old or quantized.producer in plan.absorbed:
                self.produced = new
                return
        super().replace(old, new)

    def constant(self, array: np.ndarray | Tensor, hint: str, beside: Value | None = None) -> Value:
        """Add an initializer, or give the one that was added under the same hint with the same elements.

        Args:
            array: The elements.
            hint: What to name it.
            beside: Put it into the scope of this value: what several bodies read is stored once, outside of them.

        """
        if beside is not None and beside.graph is not self.graph:
            return self._at(beside.graph).constant(array, hint)
        tensor = array if isinstance(array, Tensor) else ArrayTensor(self._shared.weights.keep(np.asarray(array)))
        known = self._shared.constants.setdefault((self.graph, hint), [])
        for value in known:
            if value.tensor is not None and _same(value.tensor, tensor):
                return value
        known.append(super().constant(tensor, hint))
        return known[-1]

    def _at(self, graph: Graph) -> QuantizingPatch:
        """The patch for what belongs into the scope of a weight; this one, unless the weight stands outside."""
        if graph is self.graph:
            return self
        if graph not in self._shared.outer:
            self._shared.outer[graph] = QuantizingPatch(graph, None, "weights that bodies read", self._shared)
        return self._shared.outer[graph]

    def dynamic(self, value: Value) -> tuple[Value, Value, Value]:
        """Quantize an activation at run time: uint8 codes, scale, zero point, shared by readers in this scope."""
        hints = [f"{value.name}_{what}" for what in ("quantized", "scale", "zero_point", "QuantizeLinear")]
        made = self.once(
            value,
            "dynamic",
            lambda: tuple(self.node("DynamicQuantizeLinear", [value], outputs=hints[:3], name=hints[3])),
        )
        return made[0], made[1], made[2]

    def once(self, value: Value, form: str, make: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        """Return what `make` makes of a value, made once for all that read it in this form and scope."""
        key = (self.graph, value, form)
        if key not in self._shared.made:
            self._shared.made[key] = make()
        return self._shared.made[key]

    def quantized(self, value: Value) -> tuple[Value, Value, Value]:
        """Quantize an activation by its calibrated scale: codes, scale, zero point, shared by readers in this scope."""

        def make() -> tuple[Value, ...]:
            codes, scale, zero = self._quantize(value, value)
            return codes, unfolded(self, scale, f"{scale.name}_read"), zero

        made = self.once(value, "product", make)
        return made[0], made[1], made[2]

    def scaled(self, value: Value, factor: float) -> Value:
        """Read an activation times a number: its codes through a DequantizeLinear with a scale so much larger."""
        owner = self._shared.plan.scale_owner(value)
        codes, _, zero = self._quantize(value, value)
        number = np.clip(self.activation_scale(value) * factor, TINY, LARGEST)
        scale = self.constant(np.array(number, np.float32), f"{owner.name}_scale_times")
        scheme = self._shared.plan.range_settings(owner)
        return self._quantizing("DequantizeLinear", [codes, scale, zero], f"{value.name}_times", scheme)

    def is_quantized(self, value: Value) -> bool:
        """Whether anybody reads an activation by a calibrated scale."""
        return self._shared.plan.scale_owner(value) in self._shared.qparams

    def activation_scale(self, value: Value) -> float:
        """Scale of an activation that the plan quantizes."""
        return float(self._shared.qparams[self._shared.plan.scale_owner(value)][0])

    def dequantized(self, value: Value) -> Value:
        """Read an activation through its Q/DQ pair; where its producer quantizes it, that is the value itself.

        Every scope has pairs of its own: onnxruntime fuses a pair only with a node of the same scope.
        """
        key = (self.graph, value)
        if key not in self._shared.dequantized:
            self._shared.dequantized[key] = self._pair(value, value)
        return self._shared.dequantized[key]

    def quantize_output(self, value: Value, producer_output: Value) -> None:
        """Let everybody read `value` through a Q/DQ pair over what the producer gives."""
        super().replace(value, self._pair(value, producer_output))
        self._shared.dequantized[value.graph, value] = value

    def read_pairs(self, node: Node, form: QuantizedForm) -> None:
        """Let a node read its activations through Q/DQ pairs, and its constants as codes behind DequantizeLinear."""
        for slot in form.activations:
            value = node.inputs[slot]
            assert value is not None
            self.rewire(node, slot, self.dequantized(value))
        for slot in form.constants:
            value = node.inputs[slot]
            assert value is not None
            array = value.elements.numpy()
            scale, zero = array_qparams(array, self._scheme)
            kind = CODE_TYPES[self._scheme.activations]
            codes = np.clip(np.rint(array / scale) + int(zero), kind.low, kind.high).astype(kind.container)
            parts = {"quantized": codes, "scale": np.asarray(scale), "zero_point": np.asarray(zero)}
            inputs = [self.constant(part, f"{value.name}_{what}") for what, part in parts.items()]
            hint = f"{value.name}_dequantized"
            self.rewire(node, slot, self._quantizing("DequantizeLinear", inputs, hint, self._scheme))

    def codes(
        self,
        weight: Value,
        *,
        reduce: Sequence[int],
        scheme: Scheme,
        minimum: np.ndarray | None = None,
        block_size: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quantize a weight symmetrically.

        Args:
            weight: A constant float32 value.
            reduce: Axes that share a scale; with `granularity = "tensor"` all of them do.
            scheme: The node's settings.
            minimum: Least scale, broadcasting against the scales; for biases that would overflow otherwise.
            block_size: Elements along the one axis in `reduce` that share a scale, 0 for all.

        Returns:
            int8 codes of the weight's shape, and float32 scales of the same rank with 1 along the shared axes, or as
            many as there are blocks.

        """
        weights = self._shared.weights
        coding = self._coding(weight, reduce, scheme, block_size)
        name = "" if self.anchor is None else self.anchor.display_name
        coded = weights.codes(weight, coding, minimum, self._label, name)
        node = self.anchor if scheme.reduce_range else None
        if node is not None and weight in node.inputs[1:3] and could_saturate(node, coded[0], scheme):
            return weights.reduce(weight, coding, minimum, self._label, name)
        return coded

    def rounding_error(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme) -> float:
        """Return the squared error of what `codes` gives for the same arguments, summed over the weight."""
        return self._shared.weights.error(weight, self._coding(weight, reduce, scheme), self._label)

    def _coding(self, weight: Value, reduce: Sequence[int], scheme: Scheme, block_size: int = 0) -> WeightSpec:
        rank = len(weight.elements.shape)
        axes = tuple(range(rank)) if scheme.granularity == "tensor" else tuple(sorted(axis % rank for axis in reduce))
        summed = None if self.anchor is None else summed_pairs(self.anchor, weight, scheme)
        return WeightSpec(axes, scheme.weight_bits, block_size, summed)

    def block_codes(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme) -> BlockCodes:
        """Quantize a weight in blocks, each with a scale and a zero point.

        Args:
            weight: A constant float32 value.
            reduce: The axis of the blocks.
            scheme: The node's settings.

        """
        axis = reduce[0] % len(weight.elements.shape)
        coding = WeightSpec((axis,), scheme.weight_bits, scheme.block_size, zero_points=True)
        return self._shared.weights.block_codes(weight, coding, self._label)

    def tied_product(self, table: Value) -> tuple[Value, int, Scheme] | None:
        """Find the product that multiplies by a table in blocks of 8 bits: its weight, the axis, and its settings."""
        found = self._shared.tied.get(table)
        return None if found is None else (found.weight, found.axis, found.scheme)

    def stored(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme, block_size: int = 0) -> Value:
        """Return a float weight that the file holds in 12, 8 or 4 bit, one for all readers."""
        rank = len(weight.elements.shape)
        kept = [axis for axis in range(rank) if axis not in [shared % rank for shared in reduce]]
        linear = scheme.form == "qdq" and scheme.weight_bits <= 8
        if linear and len(kept) > 1 and not block_size:  # DequantizeLinear has scales along one axis only
            reduce = [axis for axis in range(rank) if axis != kept[-1]]
        key = (weight, tuple(reduce), scheme)
        if key not in self._shared.stored and block_size and scheme.zero_points:
            blocks = self.block_codes(weight, reduce=reduce, scheme=scheme)
            self._shared.stored[key] = self._at(weight.graph)._zeroed_blocks(blocks, reduce[0], weight.name, scheme)
        if key not in self._shared.stored:
            codes, scales = self.codes(weight, reduce=reduce, scheme=scheme, block_size=block_size)
            if scheme.weight_bits == 4:
                codes = codes.astype(ml_dtypes.int4)
            there = self._at(weight.graph)
            parts = (codes, scales, reduce[0], block_size, weight.name, scheme)
            made = there._blocks(*parts) if block_size else there._stored(codes, scales, weight.name, scheme)
            self._shared.stored[key] = made
        return self._shared.stored[key]

    def _stored(self, codes: np.ndarray, scales: np.ndarray, name: str, scheme: Scheme) -> Value:
        if scheme.weight_bits == 12:
            return self._halves(codes, scales, name)
        if scheme.form == "qdq":
            axis = next((axis for axis, size in enumerate(scales.shape) if size > 1), 0)
            return self._linear(codes, scales, axis, name, scheme)
        return self._cast_mul(codes, scales.reshape(()) if scales.size == 1 else scales, name)

    def _halves(self, codes: np.ndarray, scales: np.ndarray, name: str) -> Value:
        """Return a weight whose codes of 12 bits are stored as 8 bits, and as 4 bits of which a byte holds two.

        A table turns a byte into two numbers, sixteenths of what the upper 8 bits count. onnxruntime computes the
        weight once, when it loads the model.
        """
        low = (codes & 15).astype(np.uint8).reshape(-1, 2)
        places = np.arange(256)
        table = self.constant((np.stack([places & 15, places >> 4], axis=1) / 16).astype(np.float32), "sixteenths")
        upper = self.constant((codes >> 4).astype(np.int8), f"{name}_quantized")
        lower = self.constant(low[:, 0] | low[:, 1] << 4, f"{name}_lower")
        shape = self.constant(np.array(codes.shape, np.int64), f"{name}_shape")
        scale = self.constant((scales * np.float32(16)).astype(np.float32), f"{name}_scale")
        places_of = self.op("Cast", lower, to=int(TensorProto.INT32), hint=f"{name}_pairs")
        parts = self.op("Gather", table, places_of, hint=f"{name}_parts", axis=0)
        parts = self.op("Reshape", parts, shape, hint=f"{name}_rest")
        cast = self.op("Cast", upper, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
        return self.op("Mul", self.op("Add", cast, parts, hint=f"{name}_codes"), scale, hint=f"{name}_dequantized")

    def _cast_mul(self, codes: np.ndarray, scales: np.ndarray, name: str) -> Value:
        stored, scale = self.constant(codes, f"{name}_quantized"), self.constant(scales, f"{name}_scale")
        cast = self.op("Cast", stored, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
        return self.op("Mul", cast, scale, hint=f"{name}_dequantized")

    def _blocks(
        self, codes: np.ndarray, scales: np.ndarray, axis: int, block_size: int, name: str, scheme: Scheme
    ) -> Value:
        """Return a weight with a scale for each block of elements along an axis; the last block may be smaller."""
        shape, count = list(codes.shape), scales.shape[axis]
        if scheme.form == "qdq":
            inputs = [self.constant(codes, f"{name}_quantized"), self.constant(scales, f"{name}_scale")]
            attributes = {"axis": axis, "block_size": block_size}
            return self._quantizing("DequantizeLinear", inputs, f"{name}_dequantized", scheme, **attributes)
        weight = self._cast_mul(_in_blocks(codes, axis, count, block_size), np.expand_dims(scales, axis + 1), name)
        return self._joined(weight, shape, axis, count * block_size, name)

    def _zeroed_blocks(self, blocks: BlockCodes, axis: int, name: str, scheme: Scheme) -> Value:
        """Return a weight whose blocks have zero points, too."""
        stored_type = ml_dtypes.uint4 if scheme.weight_bits == 4 else np.uint8
        codes, zeros = blocks.codes.astype(stored_type), blocks.zeros.astype(stored_type)
        scales, block_size = blocks.scales, scheme.block_size
        if scheme.form == "qdq":
            parts = {"quantized": codes, "scale": scales, "zero_point": zeros}
            inputs = [self.constant(np.ascontiguousarray(part), f"{name}_{what}") for what, part in parts.items()]
            attributes = {"axis": axis, "block_size": block_size}
            return self._quantizing("DequantizeLinear", inputs, f"{name}_dequantized", scheme, **attributes)
        count = scales.shape[axis]
        parts = {
            "quantized": _in_blocks(codes, axis, count, block_size),
            "zero_point": np.expand_dims(zeros, axis + 1),
            "scale": np.expand_dims(scales, axis + 1),
        }
        stored, zero, scale = (self.constant(part, f"{name}_{what}") for what, part in parts.items())
        cast, offset = (
            self.op("Cast", value, to=int(TensorProto.FLOAT), hint=f"{value.name}_cast") for value in (stored, zero)
        )
        centered = self.op("Sub", cast, offset, hint=f"{name}_centered")
        weight = self.op("Mul", centered, scale, hint=f"{name}_dequantized")
        return self._joined(weight, list(codes.shape), axis, count * block_size, name)

    def _joined(self, weight: Value, shape: Sequence[int], axis: int, filled: int, name: str) -> Value:
        """Join blocks, whose axes are `axis` and the one behind it, and take off what fills up the last one."""
        target = self.constant(np.array([*shape[:axis], filled, *shape[axis + 1 :]], np.int64), f"{name}_shape")
        weight = self.op("Reshape", weight, target, hint=f"{name}_dequantized")
        if filled == shape[axis]:
            return weight
        bounds = [
            self.constant(np.array([n], np.int64), f"{name}_{what}")
            for n, what in ((0, "start"), (shape[axis], "end"), (axis, "axis"))
        ]
        return self.op("Slice", weight, *bounds, hint=f"{name}_dequantized")

    def linear_weight(self, codes: np.ndarray, scales: np.ndarray, axis: int, hint: str) -> Value:
        """Return a float weight as DequantizeLinear of codes, with one scale or one for each index along `axis`."""
        return self._linear(codes, scales, axis, hint, self._scheme)

    def _linear(self, codes: np.ndarray, scales: np.ndarray, axis: int, hint: str, scheme: Scheme) -> Value:
        per_axis = scales.size > 1
        scales = scales.reshape(-1 if per_axis else ())
        inputs = [self.constant(codes, f"{hint}_quantized"), self.constant(scales, f"{hint}_scale")]
        if codes.dtype != np.int32:
            inputs.append(self.constant(np.zeros(scales.shape, codes.dtype), f"{hint}_zero_point"))
        attributes = {"axis": axis} if per_axis else {}
        return self._quantizing("DequantizeLinear", inputs, f"{hint}_dequantized", scheme, **attributes)

    def _quantizing(self, op_type: str, inputs: Sequence[Value], hint: str, scheme: Scheme, **attributes: Any) -> Value:
        """Add a QuantizeLinear or DequantizeLinear of the domain that the scheme asks for."""
        return self.node(op_type, list(inputs), outputs=[hint], domain=scheme.domain_name, **attributes)[0]

    def _pair(self, value: Value, source: Value) -> Value:
        scheme = self._shared.plan.range_settings(self._shared.plan.scale_owner(value))
        return self._quantizing("DequantizeLinear", self._quantize(value, source), f"{value.name}_dequantized", scheme)

    def _quantize(self, value: Value, source: Value) -> tuple[Value, ...]:
        """Quantize what stands for a value in this scope: codes, scale and zero point."""

        def make() -> tuple[Value, ...]:
            plan, read = self._shared.plan, source
            owner = plan.scale_owner(value)
            scheme = plan.range_settings(owner)
            scale, zero = (np.asarray(number).reshape(()) for number in self._shared.qparams[owner])
            scales = self.constant(scale.astype(np.float32), f"{owner.name}_scale")
            zeros = self.constant(zero, f"{owner.name}_zero_point")
            if computed_in_codes(value, plan, scheme.target):
                read = self.op("Max", source, hint=f"{value.name}_kept")
            inputs = (read, scales, zeros)
            return self._quantizing("QuantizeLinear", inputs, f"{value.name}_quantized", scheme), scales, zeros

        return self.once(value, "codes", make)


def _in_blocks(codes: np.ndarray, axis: int, count: int, block_size: int) -> np.ndarray:
    """Cut an axis into so many blocks, `[…, count, block_size, …]`, the last one filled up with zeros."""
    shape = codes.shape
    full = np.zeros([*shape[:axis], count * block_size, *shape[axis + 1 :]], codes.dtype)
    full[(slice(None),) * axis + (slice(shape[axis]),)] = codes
    return full.reshape(*shape[:axis], count, block_size, *shape[axis + 1 :])


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one.numpy(), other.numpy())
