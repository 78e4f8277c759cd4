"""Place QuantizeLinear and DequantizeLinear at a node by the data of its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from onnx import TensorProto

from onnxq.ir import Node, Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.family import NodeView, NotQuantizable, QuantizedForm, plan_site
from onnxq.ops.forms.integer_domain import CLAMPS, MOVERS
from onnxq.ops.forms.scheme import Scheme
from onnxq.targets.target import Target, load_target

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
DATA_FIRST = ("Clip", "Resize", "Pad")  # their other float inputs are settings
SAME_SCALE = ("MaxPool", "Gather", "Expand", "Tile", *MOVERS)
# onnxruntime takes pairs around them away; older ones know no codes
LEAST_OPSET = {"DepthToSpace": 11, "ReduceMax": 12}


@cache
def resolve_target_defaults(scheme: Scheme, op_type: str, target: Target) -> Scheme:
    """Fill in what a recipe leaves open, once for each operator: a default value is the target's to choose."""
    default = Scheme()
    changes: dict[str, Any] = {"bias": target.bias}
    if scheme.activations == default.activations:
        changes["activations"] = target.activations[0]
    if scheme.form == default.form:
        changes["form"] = target.stored
        # `auto` takes what is fastest, which static products of these types alone can be written as.
        usual = changes.get("activations", scheme.activations) == "uint8" and scheme.domain == default.domain
        if scheme.name == "auto" and target.products == "integer" and usual:
            changes["form"] = "integer"
    if op_type in target.per_tensor:
        changes["granularity"] = "tensor"
    return replace(scheme, **changes)


def refuse_unknown(node: Node, scheme: Scheme, target: Target) -> None:
    """Refuse what a target does not know; raises NotQuantizable."""
    if scheme.name == "dynamic-int8" and not target.run_time:
        raise NotQuantizable(f"target {target.name} has no quantization at run time")
    if scheme.name == "static-int8" and scheme.activations not in target.activations:
        raise NotQuantizable(
            f"target {target.name} takes {' or '.join(target.activations)} activations, not {scheme.activations}"
        )
    if scheme.form == "integer" and scheme.name == "static-int8" and not target.run_time:
        raise NotQuantizable(f"target {target.name} has no MatMulInteger")
    domain = MICROSOFT if scheme.form == "matmulnbits" else scheme.domain
    if domain not in target.domains:
        raise NotQuantizable(f"target {target.name} has no operators of {domain}")
    if node.op_type in ("Gather", "Slice") and scheme.name.startswith("weight-") and not target.tables:
        raise NotQuantizable(f"target {target.name} has no lookup in 8-bit tables")


def check_activations(scheme: Scheme, opset: int) -> None:
    """Refuse types and scales of activations that a scheme or onnxruntime does not have; raises NotQuantizable."""
    if scheme.name == "dynamic-int8" and scheme.activations != "uint8":
        raise NotQuantizable(f"activations quantized at run time are uint8, not {scheme.activations}")
    if scheme.name == "static-int8" and scheme.activation_granularity == "row":
        raise NotQuantizable("a scale for every row is computed at run time, which static-int8 is not")
    # It states the type on the nodes that it moves, and then changes the type of their zero point to uint8.
    broken = (scheme.activations, scheme.domain) == ("int8", "ai.onnx") and opset >= 21
    if scheme.name == "static-int8" and broken and not load_target(scheme.target).signed_from_21:
        raise NotQuantizable('onnxruntime fails on int8 activations from opset 21 on, unless domain = "com.microsoft"')


def place_qdq(site: NodeView, target: Target) -> QuantizedForm:
    """Say what a node would become for a target; raises NotQuantizable."""
    if site.scheme.name != "static-int8" or target.timed:
        return plan_site(site)
    node = site.node
    if node.op_type == "Add" and not node.domain and target.residual != "between":
        return _residual(site, target)
    weighted = node.op_type in WEIGHTED and not node.domain
    if node.op_type in target.always and not (weighted and _has_weight(node)):
        return _everywhere(site)
    wanted = weighted or any(fnmatchcase(node.op_type, glob) for glob in target.between)
    if not wanted and node.outputs and _dtype(node.outputs[0]) == TensorProto.FLOAT and not node.bodies:
        raise NotQuantizable(f"target {target.name} has no Q/DQ around it")
    form = plan_site(site)
    if not weighted:
        return form
    output = target.conv_output if node.op_type in ("Conv", "ConvTranspose") else target.product_output
    if output == form.output:
        return form
    sentence = "Q/DQ on input, weight and output" if output else "Q/DQ on input and weight, float output"
    return replace(form, sentence=sentence, output=output)


def _has_weight(node: Node) -> bool:
    return any(value is not None and value.constant is not None for value in node.inputs[:2])


def _residual(site: NodeView, target: Target) -> QuantizedForm:
    """Quantize what is added to the output of a Conv, which then computes the sum as well."""
    convolved = [slot for slot in (0, 1) if _is_conv(site.float_input(slot).producer)]
    if not convolved:
        raise NotQuantizable("it adds nothing to a Conv")
    if target.residual == "both":
        slots: tuple[int, ...] = (0, 1)
    else:  # of two convolutions the later one computes the sum; one outside of a body comes before all inside
        places = {node: place for place, node in enumerate(site.node.graph.nodes)}
        last = max(convolved, key=lambda slot: places.get(_producer(site.value(slot)), -1))
        slots = (1 - last,)
    which = "inputs" if len(slots) > 1 else "residual input"
    return QuantizedForm(
        f"Q/DQ on its {which}", activations=slots, opset=site.scheme.pair_opset(activation=True), pairs=True
    )


def _is_conv(node: Node | None) -> bool:
    return node is not None and node.op_type == "Conv" and not node.domain


def _producer(value: Value) -> Node:
    assert value.producer is not None
    return value.producer


def _everywhere(site: NodeView) -> QuantizedForm:
    """Quantize every float input and the output, constants included."""
    node = site.node
    slots = range(1 if node.op_type in DATA_FIRST else len(node.inputs))
    floats = [slot for slot in slots if _dtype(node.inputs[slot]) == TensorProto.FLOAT]
    if not floats or node.outputs[0] is None or node.outputs[0].dtype != TensorProto.FLOAT:
        raise NotQuantizable("it works on no float32 values")
    if len(node.makes) > 1:
        raise NotQuantizable("it has several outputs")
    constants = tuple(slot for slot in floats if site.constant(slot) is not None)
    activations = tuple(slot for slot in floats if slot not in constants)
    for slot in activations:
        site.float_input(slot)
    same = node.op_type in SAME_SCALE and activations == (0,) and not constants
    return QuantizedForm(
        "Q/DQ on inputs and output",
        activations=activations,
        output=True,
        same_scale=same,
        opset=max(site.scheme.pair_opset(activation=True), LEAST_OPSET.get(node.op_type, 1)),
        pairs=True,
        constants=constants,
    )


def _dtype(value: Value | None) -> int | None:
    if value is None:
        return None
    return value.tensor.dtype if value.tensor is not None else value.dtype


def useless_residuals(forms: Mapping[Node, QuantizedForm | None]) -> list[Node]:
    """Name the additions whose Conv stays float, so that nothing computes the sum in 8 bit."""
    found = []
    for node, form in forms.items():
        if node.op_type != "Add" or form is None or not form.pairs or form.output:
            continue
        makers = [value.producer for value in node.reads]
        if not any(_is_conv(maker) and maker is not None and forms.get(maker) is not None for maker in makers):
            found.append(node)
    return found


def redundant_clamps(forms: Mapping[Node, QuantizedForm | None]) -> dict[Node, Node]:
    """Name the clamps with pairs of their own whose products stay float, by node: a kernel computes both at once."""
    found = {}
    for node, form in forms.items():
        source = node.inputs[0] if node.inputs else None
        maker = source.producer if source is not None else None
        if node.op_type not in CLAMPS or form is None or source is None or maker is None or len(source.uses) > 1:
            continue
        made = forms.get(maker)
        if maker.op_type in WEIGHTED and not maker.domain and _has_weight(maker) and not (made and made.output):
            found[node] = maker
    return found
