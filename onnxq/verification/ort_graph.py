"""The graph that onnxruntime runs of a quantized model: the kernel of every quantized node, and nodes that gain
nothing.

It is read from the graph that onnxruntime optimises when it loads the model, up to its extended level. The last level
changes the layout of tensors, not the nodes that compute in 8 bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx import TensorProto

from onnxq.errors import ModelError
from onnxq.ir import Model, ModelInput, Node, Value, load, parse, read_model
from onnxq.ir.storage.temporary import temporary_folder
from onnxq.runtime.ort_session import SessionError, Settings, load_native

CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# Kernels on codes. Sources: onnxruntime's ContribOperators.md and its CPU execution provider
INTEGER = ("MatMulInteger", "ConvInteger", "QGemm", "MatMulIntegerToFloat", "MatMulNBits", "GatherBlockQuantized")
INTEGER_PREFIXES = ("QLinear", "DynamicQuantize", "QAttention", "QEmbed", "QMoE")
FLOAT_RESULTS = ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits", "QAttention")
PRODUCTS = ("Conv", "FusedConv", "NhwcFusedConv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm", "FusedGemm")
MOVERS = (
    *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "MaxPool", "Resize", "DepthToSpace"),
    *("Split", "Slice", "Gather", "Expand", "Concat", "Pad"),
)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
FLOAT_OUTPUT = ("MatMul", "Gemm")
FLOAT_BETWEEN = ("QuickGelu",)  # of codes, but written to be computed in float: `ops/forms/silu.py`
FUSED_BEHIND = ("QuantizeLinear", "Cast", "Mul", "Add", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid")
MERGED = "merged"


@dataclass(frozen=True)
class FusedNode:
    """The kernels that run one quantized node of the model.

    Attributes:
        node: Its name, or its first output where it has none.
        operator: Its operator in the model.
        kernel: The operator that computes it on codes, or `merged` where it has gone; None where it computes in float.
        sentence: The same for people.

    """

    node: str
    operator: str
    kernel: str | None
    sentence: str


@dataclass(frozen=True)
class Fusion:
    """The graph that onnxruntime runs of a model.

    Attributes:
        kernels: How many nodes of the optimised graph run in which kernel: kernels on codes, conversions, and products
            left in float (`Conv in float`); the most frequent first.
        groups: The quantized nodes of the model, in graph order.
        skipped: Why nothing was read; None where it was.

    """

    kernels: dict[str, int]
    groups: tuple[FusedNode, ...]
    skipped: str | None = None

    @property
    def unfused(self) -> tuple[FusedNode, ...]:
        """The quantized nodes that compute in float all the same."""
        return tuple(group for group in self.groups if group.kernel is None)


def read_fusion(model: ModelInput | bytes) -> Fusion:
    """Let onnxruntime optimise a model, and compare the graphs.

    Args:
        model: The quantized model: its path, a ModelProto, loaded, or its bytes; with external data by its path.

    Returns:
        How many nodes run in which kernel, and what became of each quantized node.

    Raises:
        ModelError: onnxruntime cannot load the model.

    Examples:
        >>> import onnxq
        >>> onnxq.read_fusion("small.onnx").kernels["QLinearConv"]
        2

    """
    source = parse(model) if isinstance(model, bytes) else read_model(model)
    if not source.residency.copies:
        return Fusion({}, (), "the model is too large for onnxruntime to write it optimised")
    if not isinstance(model, str | Path | bytes):
        model = source.serialize()
    with temporary_folder() as folder:
        path = folder / "optimised.onnx"
        try:
            load_native(model if isinstance(model, bytes) else str(model), Settings("extended", save_to=str(path)))
        except SessionError as error:
            label = "the model" if isinstance(model, bytes) else str(model)
            raise ModelError(f"onnxruntime cannot load {label}: {error}", "Check it with `onnxq verify`.") from error
        optimised = load(path)
        index = _Index(optimised)
        groups = tuple(_follow(node, index) for node in source.graph.walk() if _is_quantized(node))
        return Fusion(_kernels(optimised), groups)


def _kernels(optimised: Model) -> dict[str, int]:
    names = []
    for node in optimised.graph.walk():
        if computes_on_codes(node) or node.op_type in CONVERSIONS:
            names.append(node.op_type)
        elif node.op_type in PRODUCTS:
            names.append(f"{node.op_type.removeprefix('Fused')} in float")
    return dict(Counter(names).most_common())


def quantized_already(model: Model) -> str:
    """Say which operators of quantized models a model has, and how many of each; nothing where it has none."""
    found = Counter(
        node.op_type for node in model.graph.walk() if node.op_type in CONVERSIONS or computes_on_codes(node)
    )
    return ", ".join(f"{operator} {count}" for operator, count in found.most_common(3))


def holds_codes(model: Model) -> bool:
    """Whether a model computes on codes, or stores weights as such: it is no float model."""
    return bool(quantized_already(model)) or _stores_codes(model)


def _stores_codes(model: Model) -> bool:
    """Whether a model holds weights in few bits that a Cast makes float, or rows of them that a Gather looks up."""
    small = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)
    stored = [value for value in model.initializers() if value.tensor is not None and value.tensor.dtype in small]
    readers = [node for value in stored for node in value.consumers()]
    rows = [value for node in readers if node.op_type == "Gather" for value in node.makes]
    return any(node.op_type == "Cast" for node in [*readers, *(node for value in rows for node in value.consumers())])


def computes_on_codes(node: Node) -> bool:
    """Whether an operator itself takes codes and computes on them, conversions aside."""
    if node.op_type in CONVERSIONS:
        return False
    return node.op_type in INTEGER or node.op_type.startswith(INTEGER_PREFIXES)


def _is_quantized(node: Node) -> bool:
    """Whether a node of the model works on codes, or is written to be computed on them: with a dequantized weight."""
    if node.op_type in CONVERSIONS:
        return False
    return becomes_integer(node) or any(_codes(value) is not None for value in node.reads)


def becomes_integer(node: Node) -> bool:
    """Whether a node computes on codes: by itself, or once onnxruntime has fused the conversions around it.

    It fuses what reads nothing but dequantized values and is quantized again at once; MatMul and Gemm may give floats.
    Other nodes behind a DequantizeLinear stand at the border: they read what came out of integers. Source: QDQ
    selectors in onnxruntime/core/optimizer/qdq_transformer.
    """
    if node.op_type in (*CONVERSIONS, *FLOAT_BETWEEN):
        return False
    if computes_on_codes(node):
        return True
    dequantized = [value for value in node.reads if _is_dequantized(value)]
    if not dequantized or not all(value in dequantized or _is_setting(value) for value in node.reads):
        return False
    readers = [use.node.op_type for value in node.makes for use in value.uses]
    return node.op_type in FLOAT_OUTPUT or (bool(readers) and set(readers) == {"QuantizeLinear"})


def _is_setting(value: Value) -> bool:
    """Whether an input is a shape, an index, a bound or the like: a constant that is no weight."""
    return value.tensor is not None and (len(value.tensor.shape) < 2 or value.tensor.dtype not in FLOATS)


def _is_dequantized(value: Value) -> bool:
    return value.producer is not None and value.producer.op_type == "DequantizeLinear"


def _codes(value: Value) -> Value | None:
    """Return the constant codes that a value is dequantized from; None for an activation, and for a single number."""
    codes = value.producer.inputs[0] if value.producer is not None and _is_dequantized(value) else None
    return codes if codes is not None and codes.tensor is not None and codes.tensor.size > 1 else None


class _Index:
    """The nodes of the optimised graph, by what tells which node of the model they come from."""

    def __init__(self, optimised: Model) -> None:
        self.by_constant: dict[str, list[Node]] = {}
        self.by_output: dict[str, Node] = {}
        self.by_name: dict[str, Node] = {}
        for node in optimised.graph.walk():
            for value in node.reads:
                if value.tensor is not None:
                    self.by_constant.setdefault(value.name, []).append(node)
            for value in node.makes:
                self.by_output.setdefault(value.name, node)
            # of a fused node, onnxruntime makes the name unique by a number behind the old one
            self.by_name.setdefault(node.name, node)
            self.by_name.setdefault(node.name.partition("_token_")[0], node)

    def find(self, node: Node) -> Node | None:
        """Find what a node has become: what reads its codes, has its name, or makes what it or its reader made."""
        for constant in _constants(node):
            readers = [n for n in self.by_constant.get(constant, ()) if n.op_type not in CONVERSIONS]
            if len(readers) == 1:
                return readers[0]
        if node.name and node.name in self.by_name:
            return self.by_name[node.name]
        for value in node.outputs:
            for name in _names_behind(value):
                found = self.by_output.get(name)
                if found is not None and found.op_type not in CONVERSIONS:
                    return found
        return None


def _constants(node: Node) -> Iterator[str]:
    """Name the constants that tell a node from others: codes behind DequantizeLinear first, then its own."""
    read = node.reads
    yield from (codes.name for value in read if (codes := _codes(value)) is not None)
    yield from (value.name for value in read if value.tensor is not None and value.shape)


def _names_behind(value: Value | None) -> Iterator[str]:
    """Name a value and what its only reader makes of it, as long as that may be fused: then it makes the last one."""
    while value is not None:
        yield value.name
        readers = value.consumers()
        fusible = len(readers) == 1 and readers[0].op_type in FUSED_BEHIND
        value = readers[0].outputs[0] if fusible else None


def _follow(node: Node, index: _Index) -> FusedNode:
    name = node.display_name
    found = index.find(node)
    kernel, sentence = (MERGED, "is merged into a neighbour") if found is None else _judge(found)
    return FusedNode(name, node.op_type, kernel, sentence)


def _judge(found: Node) -> tuple[str | None, str]:
    """Say what a quantized node has become: a node of the optimised graph."""
    if computes_on_codes(found):
        return found.op_type, f"computes in integers as {found.op_type}"
    dequantized = [value for value in found.reads if _is_dequantized(value)]
    weights = [value for value in dequantized if _codes(value) is not None]
    if not dequantized and any(value is not None and _holds_codes(value) for value in found.inputs):
        return found.op_type, "works on codes as they are"
    if not dequantized:
        return None, "computes in float; its constants are dequantized when the model is loaded"
    what = (
        "its weight is"
        if len(weights) == len(dequantized)
        else "its input and weight are"
        if weights
        else "its input is"
    )
    return None, f"computes in float, and {what} dequantized on every run"


def _holds_codes(value: Value) -> bool:
    """Whether a value of the optimised graph is in 8 bit: made by a quantizing node, or moved about since."""
    maker = value.producer
    while maker is not None:
        if maker.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            return True
        if computes_on_codes(maker):
            return maker.op_type not in FLOAT_RESULTS
        if maker.op_type not in MOVERS or not maker.inputs or maker.inputs[0] is None:
            return False
        maker = maker.inputs[0].producer
    return False
