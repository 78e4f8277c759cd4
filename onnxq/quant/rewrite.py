"""Carry out a plan: every family describes its nodes as patches, and the graph commits them in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from onnxq.errors import ModelError
from onnxq.ir import Graph, Model, Node, Patch, Value, commit
from onnxq.ops.family import Scheme, Site, rewrite_site
from onnxq.quant.plan import Plan
from onnxq.quant.qparams import quantize_weight

QParams = tuple[np.float32, np.ndarray]


class _Shared:
    """What several nodes share: one DynamicQuantizeLinear or Q/DQ pair per value, one stored form per weight."""

    def __init__(self, plan: Plan, qparams: Mapping[Value, QParams]) -> None:
        self.plan = plan
        self.qparams = qparams
        self.dynamic: dict[tuple[Graph, Value], tuple[Value, Value, Value]] = {}
        self.dequantized: dict[Value, Value] = {}
        self.stored: dict[tuple[Graph, Value, tuple[int, ...], Scheme], Value] = {}
        self.codes: dict[tuple[Value, tuple[int, ...], Scheme, str], tuple[np.ndarray, np.ndarray]] = {}
        self.constants: dict[tuple[Graph, str, bytes], Value] = {}


class QuantizingPatch(Patch):
    """A patch that knows how quantization writes things down; the `Rewriter` of the operator families."""

    def __init__(self, node: Node, shared: _Shared) -> None:
        super().__init__(node.graph, node, f"quantize {node.label}")
        self._node = node
        self._shared = shared

    def dynamic(self, value: Value) -> tuple[Value, Value, Value]:
        """Quantize an activation at run time: uint8 codes, scale and zero point, shared by its readers in this scope."""
        key = (self.graph, value)
        if key not in self._shared.dynamic:
            hints = [f"{value.name}_quantized", f"{value.name}_scale", f"{value.name}_zero_point"]
            codes, scale, zero = self.node(
                "DynamicQuantizeLinear", [value], outputs=hints, name=f"{value.name}_QuantizeLinear"
            )
            self._shared.dynamic[key] = (codes, scale, zero)
        return self._shared.dynamic[key]

    def activation_scale(self, value: Value) -> float:
        """Scale of an activation that the plan quantizes."""
        return float(self._qparams(value)[0])

    def dequantized(self, value: Value) -> Value:
        """Read an activation through its Q/DQ pair; where its producer quantizes it already, that is the value itself."""
        if value not in self._shared.dequantized:
            self._shared.dequantized[value] = self._pair(value, value)
        return self._shared.dequantized[value]

    def quantize_output(self, value: Value, producer_output: Value) -> None:
        """Let everybody read `value` through a Q/DQ pair over what the producer gives."""
        self.replace(value, self._pair(value, producer_output))
        self._shared.dequantized[value] = value

    def codes(
        self,
        weight: Value,
        *,
        reduce: Sequence[int],
        scheme: Scheme,
        dtype: str = "int8",
        minimum: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quantize a weight symmetrically.

        Args:
            weight: A constant float32 value.
            reduce: Axes that share a scale; with `granularity = "tensor"` all of them do.
            scheme: The node's settings.
            dtype: Type of the codes.
            minimum: Least scale, broadcasting against the scales; for biases that would overflow otherwise.

        Returns:
            Codes of the weight's shape, and float32 scales of the same rank with 1 along the shared axes.

        """
        assert weight.constant is not None
        rank = len(weight.constant.shape)
        axes = tuple(range(rank)) if scheme.granularity == "tensor" else tuple(sorted(axis % rank for axis in reduce))
        key = (weight, axes, scheme, dtype)
        if minimum is not None or key not in self._shared.codes:
            try:
                result = _codes(weight.constant.numpy(), axes, dtype, minimum)
            except ModelError as error:
                raise ModelError(f"'{weight.name}', read by {self._node.label}: {error.message}", error.hint) from error
            if minimum is not None:
                return result
            self._shared.codes[key] = result
        return self._shared.codes[key]

    def stored(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme) -> Value:
        """Give a float weight that the file holds in 8 bit, one for all readers in this scope."""
        key = (self.graph, weight, tuple(reduce), scheme)
        if key not in self._shared.stored:
            codes, scales = self.codes(weight, reduce=reduce, scheme=scheme)
            self._shared.stored[key] = self._stored(codes, scales, weight.name, scheme)
        return self._shared.stored[key]

    def _stored(self, codes: np.ndarray, scales: np.ndarray, name: str, scheme: Scheme) -> Value:
        axes = [axis for axis, size in enumerate(scales.shape) if size > 1]
        if scheme.form == "qdq" and len(axes) <= 1:
            return self.linear_weight(codes, scales, axes[0] if axes else 0, name)
        stored = self.constant(codes, f"{name}_quantized")
        scale = self.constant(scales.reshape(()) if scales.size == 1 else scales, f"{name}_scale")
        cast = self.op("Cast", stored, to=int(TensorProto.FLOAT), hint=f"{name}_cast")
        return self.op("Mul", cast, scale, hint=f"{name}_dequantized")

    def linear_weight(self, codes: np.ndarray, scales: np.ndarray, axis: int, hint: str) -> Value:
        """Give a float weight as DequantizeLinear of codes, with one scale or one for each index along `axis`."""
        per_axis = scales.size > 1
        scale = self.constant(scales.reshape(-1) if per_axis else scales.reshape(()), f"{hint}_scale")
        zeros = np.zeros(scale.shape or (), codes.dtype)
        inputs = [self.constant(codes, f"{hint}_quantized"), scale]
        if codes.dtype != np.int32:
            inputs.append(self.constant(zeros, f"{hint}_zero_point"))
        attributes = {"axis": axis} if per_axis else {}
        return self.op("DequantizeLinear", *inputs, hint=f"{hint}_dequantized", **attributes)

    def _qparams(self, value: Value) -> QParams:
        return self._shared.qparams[self._shared.plan.scale_owner(value)]

    def _pair(self, value: Value, source: Value) -> Value:
        scale, zero = self._qparams(value)
        owner = self._shared.plan.scale_owner(value)
        scale_value = self._scalar(np.asarray(scale, np.float32), f"{owner.name}_scale")
        zero_value = self._scalar(np.asarray(zero), f"{owner.name}_zero_point")
        codes = self.op("QuantizeLinear", source, scale_value, zero_value, hint=f"{value.name}_quantized")
        return self.op("DequantizeLinear", codes, scale_value, zero_value, hint=f"{value.name}_dequantized")

    def _scalar(self, array: np.ndarray, hint: str) -> Value:
        key = (self.graph, hint, array.tobytes())
        if key not in self._shared.constants:
            self._shared.constants[key] = self.constant(array.reshape(()), hint)
        return self._shared.constants[key]


def _codes(
    weight: np.ndarray, axes: tuple[int, ...], dtype: str, minimum: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Quantize along the axes that are kept, which are brought to the front as one."""
    kept = [axis for axis in range(weight.ndim) if axis not in axes]
    order = [*kept, *axes]
    shape = [weight.shape[axis] for axis in order]
    rows = np.ascontiguousarray(weight.transpose(order)).reshape(int(np.prod(shape[: len(kept)], dtype=np.int64)), -1)
    floor = None
    if minimum is not None:
        floor = np.broadcast_to(
            minimum, [1 if axis in axes else size for axis, size in enumerate(weight.shape)]
        ).reshape(-1)
        if not kept:
            floor = floor.max(keepdims=True)
    codes, scales, _ = quantize_weight(rows, 0, dtype)
    if floor is not None and (scales < floor).any():
        coarse = scales < floor
        scales = np.maximum(scales, floor)
        codes[coarse] = np.rint(rows[coarse] / scales[coarse, None]).astype(codes.dtype)
    back = np.argsort(order)
    codes = np.ascontiguousarray(codes.reshape(shape).transpose(back))
    return codes, scales.reshape([1 if axis in axes else weight.shape[axis] for axis in range(weight.ndim)])


def rewrite(model: Model, plan: Plan, qparams: Mapping[Value, QParams]) -> Model:
    """Replace every planned node by its quantized form.

    Args:
        model: The model that the plan was made for; it is changed.
        plan: The decisions.
        qparams: Scale and zero point of every value in `plan.calibrated()`.

    Returns:
        The same model.

    """
    shared = _Shared(plan, qparams)
    patches: list[Patch] = []
    for decision in plan.decisions:
        if decision.scheme is None:
            continue
        patch = QuantizingPatch(decision.node, shared)
        if decision.form is not None and decision.settings is not None:
            rewrite_site(Site(decision.node, decision.settings, model.opset), patch)
            if decision.node in plan.outputs:
                _quantize_output(patch, decision.node, plan)
        patches.append(patch)
    commit(patches)
    return model


def _quantize_output(patch: QuantizingPatch, node: Node, plan: Plan) -> None:
    value = plan.outputs[node]
    produced = node.outputs[0]
    assert produced is not None
    patch.quantize_output(value, produced)
