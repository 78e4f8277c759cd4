"""The interface of operator families for quantization: a plan that may refuse, and a rewrite that may not.

A family registers two functions for an operator and a scheme. The plan reads types and shapes, of weights only tables
that a Slice reads, and either gives a `QuantizedForm` or raises `NotQuantizable` with a sentence. The rewrite describes
the new nodes; since the plan was a promise, it never declines.

Tests: `tests/planning/test_plan_promise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from onnx import TensorProto

from onnxq.ir import Graph, Node, Tensor, Value
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.ops.forms.scheme import Scheme, SchemeName
from onnxq.ops.kernels.registry import load_families

# Below this, a weight in 8 bit saves less than the nodes and scales around it cost in the file.
MINIMUM_STORED_ELEMENTS = 512
OVERRIDDEN = "can be overridden by a graph input"
STORED_TYPES = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4, TensorProto.INT16)


class NotQuantizable(Exception):
    """A family refuses a node; the sentence says why, and the plan shows it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class QuantizedForm:
    """The planned form of a node.

    Attributes:
        sentence: For the plan.
        activations: Input slots that are read in 8 bit and need a range.
        output: Whether the output is quantized as well.
        passive: Whether the node only stays in the integer domain between quantized neighbours.
        same_scale: Whether the output has the scale of the first activation (the node only moves values).
        opset: The operator set version that the form needs.
        pairs: Whether all there is to do is to let the node read its activations through Q/DQ pairs.
        constants: With `pairs`: input slots of constants that are to be codes behind DequantizeLinear.

    """

    sentence: str
    activations: tuple[int, ...] = ()
    output: bool = False
    passive: bool = False
    same_scale: bool = False
    opset: int = 1
    pairs: bool = False
    constants: tuple[int, ...] = ()


class NodeView:
    """A node as a family sees it: types, shapes and constants of its inputs, and the scheme asked for."""

    def __init__(self, node: Node, scheme: Scheme, opset: int) -> None:
        self.node = node
        self.scheme = scheme
        self.opset = opset

    def input(self, slot: int) -> Value | None:
        """The value at an input, or None where it is absent."""
        return self.node.input(slot)

    def value(self, slot: int) -> Value:
        """The value at an input that has to be there."""
        value = self.input(slot)
        if value is None:
            raise NotQuantizable(f"its input {slot} is missing")
        return value

    @property
    def output(self) -> Value:
        """The first output, which `plan_site` makes sure is there."""
        value = self.node.outputs[0]
        assert value is not None
        return value

    def constant(self, slot: int) -> Tensor | None:
        """The elements of an input that is a constant, or None."""
        value = self.input(slot)
        return value.constant if value is not None else None

    def weight(self, slot: int, *, rank: int | None = None) -> Tensor:
        """The constant float weight at an input; declines where there is none that can be quantized."""
        value = self.value(slot)
        if is_stored_weight(value):
            raise NotQuantizable("weight is in 8 bit already")
        if value.constant is None:
            raise NotQuantizable(f"weight {OVERRIDDEN if value.tensor else 'is not a constant'}")
        weight = value.constant
        if weight.dtype != TensorProto.FLOAT:
            raise NotQuantizable(f"weight is {dtype_name(weight.dtype)}, not float32")
        if rank is not None and len(weight.shape) < rank:
            raise NotQuantizable(f"weight has {len(weight.shape)} dimensions")
        if weight.size == 0:
            raise NotQuantizable("weight is empty")
        return weight

    def float_input(self, slot: int) -> Value:
        """The float32 activation at an input; declines where it is another type."""
        value = self.value(slot)
        if value.tensor is not None:
            raise NotQuantizable(f"its data input {OVERRIDDEN if value.is_input else 'is a constant'}")
        if value.dtype is None:
            raise NotQuantizable(f"the type of its input '{value.name}' is not known")
        if value.dtype != TensorProto.FLOAT:
            raise NotQuantizable(f"its input is {dtype_name(value.dtype)}, not float32")
        return value


class Rewriter(Protocol):
    """The patch that a rewrite fills: `onnxq.lowering.rewrite` implements it over `onnxq.ir.Patch`."""

    graph: Graph

    @property
    def output_quantized(self) -> bool:
        """Whether the node's own output is read through a Q/DQ pair."""

    def constant(self, array: np.ndarray | Tensor, hint: str, beside: Value | None = None) -> Value:
        """Add an initializer, in the scope of `beside` if given; equal elements under one hint are added once."""

    def op(self, op_type: str, *inputs: Value | None, hint: str = "", **attributes: Any) -> Value:
        """Add a node with one output."""

    def node(
        self, op_type: str, inputs: Sequence[Value | None], *, outputs: Sequence[str], domain: str, **attributes: Any
    ) -> list[Value]:
        """Add a node of any domain; `outputs` are hints for the names of its outputs."""

    def replace(self, old: Value, new: Value) -> None:
        """Let every reader of `old` have `new`."""

    def rewire(self, node: Node, index: int, new: Value | None) -> None:
        """Let one input read another value."""

    def remove(self, node: Node) -> None:
        """Take a node out."""

    def dynamic(self, value: Value) -> tuple[Value, Value, Value]:
        """Quantize an activation at run time: uint8 codes, scale and zero point, shared by its readers."""

    def once(self, value: Value, form: str, make: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...]:
        """Return what `make` makes of a value in some form, shared by its readers."""

    def quantized(self, value: Value) -> tuple[Value, Value, Value]:
        """Quantize an activation by its calibrated scale: codes, scale and zero point, shared by its readers."""

    def dequantized(self, value: Value) -> Value:
        """Read an activation through its QuantizeLinear/DequantizeLinear pair, shared by its readers."""

    def scaled(self, value: Value, factor: float) -> Value:
        """Read an activation times a number, out of the same codes."""

    def is_quantized(self, value: Value) -> bool:
        """Whether anybody reads an activation by a calibrated scale."""

    def activation_scale(self, value: Value) -> float:
        """The scale of an activation that the plan quantizes."""

    def quantize_output(self, value: Value, producer_output: Value) -> None:
        """Let `value` be read through a Q/DQ pair over `producer_output`."""

    def codes(
        self,
        weight: Value,
        *,
        reduce: Sequence[int],
        scheme: Scheme,
        minimum: np.ndarray | None = None,
        block_size: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quantize a weight: codes, and scales that broadcast against them, 1 along `reduce` or one for each block."""

    def rounding_error(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme) -> float:
        """Return the squared error of what `codes` gives for the same arguments, summed over the weight."""

    def block_codes(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme) -> BlockCodes:
        """Quantize a weight in blocks along the one axis in `reduce`, each with a scale and a zero point."""

    def tied_product(self, table: Value) -> tuple[Value, int, Scheme] | None:
        """Find the product that multiplies by a table in blocks of 8 bits: its weight, the axis, and its settings."""

    def stored(self, weight: Value, *, reduce: Sequence[int], scheme: Scheme, block_size: int = 0) -> Value:
        """Return a float weight that the file holds in 12, 8 or 4 bit."""

    def linear_weight(self, codes: np.ndarray, scales: np.ndarray, axis: int, hint: str) -> Value:
        """Return a float weight as DequantizeLinear of codes, with one scale or one for each index along `axis`."""


def is_stored_weight(value: Value) -> bool:
    """Whether a value is what a file holds in integers: DequantizeLinear, or Mul of a Cast, over a constant."""
    node = value.producer
    if node is None:
        return False
    if node.op_type == "DequantizeLinear":
        return node.constant(0) is not None
    cast = _scaled_cast(node) if node.op_type == "Mul" and not node.domain else None
    codes = cast.inputs[0] if cast is not None else None
    return codes is not None and codes.constant is not None and codes.constant.dtype in STORED_TYPES


def _scaled_cast(product: Node) -> Node | None:
    """Return the Cast of codes that a Mul scales, seen through the Sub of zero points and the Add of lower bits."""
    node = _made_by(product, "Cast", "Sub", "Add")
    if node is not None and node.op_type == "Add":  # of the lower bits of 12
        node = _made_by(node, "Cast")
    if node is not None and node.op_type == "Sub":  # of the zero points
        node = node.inputs[0].producer if node.inputs[0] is not None else None
    return node if node is not None and node.op_type == "Cast" else None


def _made_by(reader: Node, *op_types: str) -> Node | None:
    """Return the first node of an operator that makes what a node reads."""
    made = [value.producer for value in reader.reads if value.producer is not None]
    return next((node for node in made if node.op_type in op_types and not node.domain), None)


PlanFunction = Callable[[NodeView], QuantizedForm]
RewriteFunction = Callable[[NodeView, Rewriter], None]
F = TypeVar("F", bound=Callable[..., Any])

_PLANS: dict[tuple[str, str, str], PlanFunction] = {}
_REWRITES: dict[tuple[str, str, str], RewriteFunction] = {}
_FLOAT_REASONS: dict[tuple[str, str], str] = {}


def register_plan(*op_types: str, when: SchemeName, domain: str = "") -> Callable[[F], F]:
    """Register the function that plans operators under a scheme."""
    return _register(_PLANS, op_types, when, domain)


def register_rewrite(*op_types: str, when: SchemeName, domain: str = "") -> Callable[[F], F]:
    """Register the function that rewrites operators under a scheme."""
    return _register(_REWRITES, op_types, when, domain)


def register_float_reason(reason: str, *op_types: str, domain: str = "") -> None:
    """Say why operators have no quantized form."""
    _FLOAT_REASONS.update(dict.fromkeys(((domain, op_type) for op_type in op_types), reason))


def _register(
    table: dict[tuple[str, str, str], Any], op_types: tuple[str, ...], when: str, domain: str
) -> Callable[[F], F]:
    def register(function: F) -> F:
        for op_type in op_types:
            table[domain, op_type, when] = function
        return function

    return register


def stored_form(site: NodeView, weight: Tensor) -> QuantizedForm:
    """Accept a weight that is large enough to be worth storing in 12, 8 or 4 bit."""
    if weight.size < MINIMUM_STORED_ELEMENTS:
        raise NotQuantizable(f"weight has only {weight.size} elements")
    scheme = site.scheme
    if scheme.weight_bits == 12 and (scheme.block_size or weight.size % 2):
        raise NotQuantizable("codes of 12 bit have a scale a channel, and come in pairs")
    if scheme.form == "matmulnbits":
        raise NotQuantizable(f"MatMulNBits does not compute a {site.node.op_type}")
    opset = stored_opset(scheme)
    return QuantizedForm(f"weight stored in {scheme.weight_bits} bit, computed in float", opset=opset)


def stored_opset(scheme: Scheme) -> int:
    """Return the operator set that a weight needs that is stored in few bits, and read in float."""
    if scheme.weight_bits == 12:
        return 7
    if scheme.form == "qdq":
        return scheme.pair_opset(weight=True)
    if scheme.weight_bits < 8:
        return 21  # Cast knows 4-bit types
    return 10 if scheme.block_size else 7  # Slice with inputs, which takes off what fills up the last block


def plan_site(site: NodeView) -> QuantizedForm:
    """Ask the family what a node becomes under the site's scheme; raises NotQuantizable."""
    load_families()
    node = site.node
    plan = _PLANS.get((node.domain, node.op_type, site.scheme.name))
    if plan is None:
        raise NotQuantizable(float_reason(node, site.scheme.name))
    if not any(node.outputs) or (node.outputs[0] is None and not _keeps_outputs(site)):
        raise NotQuantizable("its output is not used")
    return plan(site)


def _keeps_outputs(site: NodeView) -> bool:
    """Whether the quantized node has all outputs of the float one, of which any may be absent."""
    return site.scheme.name.startswith("weight-") or site.node.op_type == "LSTM"


def rewrite_site(site: NodeView, patch: Rewriter) -> None:
    """Let the family describe what the plan promised."""
    _REWRITES[site.node.domain, site.node.op_type, site.scheme.name](site, patch)


def float_reason(node: Node, scheme: str) -> str:
    """Say why a node has no quantized form under a scheme."""
    load_families()
    if node.bodies:
        return "it only holds bodies, whose nodes are planned one by one"
    outputs = node.makes
    if outputs and all(
        value.dtype not in (None, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE) for value in outputs
    ):
        return "it works on integers or shapes"
    if (node.domain, node.op_type) in _FLOAT_REASONS:
        return _FLOAT_REASONS[node.domain, node.op_type]
    planned = any(key[:2] == (node.domain, node.op_type) for key in _PLANS)
    if node.domain and not planned:
        return f"onnxq has no quantized form for operators of {node.domain}"
    return f"{node.op_type} has no {scheme if planned else 'quantized'} form"


def dtype_name(dtype: int) -> str:
    """Name an ONNX element type as a sentence would."""
    names: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
    return names.get(dtype) or str(TensorProto.DataType.Name(dtype)).lower()
