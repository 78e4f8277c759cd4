"""The content of a model: operators, bytes by dtype, and the share that is quantized. No weight is read.

Tests: `tests/lowering/test_qdq_pairs.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from onnxq.ir import IN_MEMORY, Model, ModelInput, Node, Tensor, Value, read_model
from onnxq.ops.forms.family import dtype_name
from onnxq.report import model_bytes
from onnxq.verification.ort_graph import CONVERSIONS, becomes_integer


@dataclass(frozen=True)
class Inspection:
    """Facts about a model.

    Attributes:
        path: Its file; `the model` where it has none.
        file_bytes: Size with external data.
        ir_version, opsets: As in ModelProto; the domain of standard operators is `ai.onnx`.
        inputs, outputs: `(name, dtype and shape)`; inputs that have an initializer are left out.
        operators: Number of nodes by operator, bodies included, the most frequent first.
        weights: `(number of constants, bytes)` by dtype, the largest first.
        quantized: Number of nodes that compute on codes, conversions aside.
        conversions: Number of nodes that convert between float and codes.
        made_by: What onnxq recorded about how it made the model; empty for others.

    """

    path: Path
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    operators: dict[str, int]
    weights: dict[str, tuple[int, int]]
    quantized: int
    conversions: int
    made_by: dict[str, str]

    @property
    def nodes(self) -> int:
        """Number of nodes, bodies included."""
        return sum(self.operators.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(size for _, size in self.weights.values())

    @property
    def small_share(self) -> float:
        """Share of the weight bytes that are held in 8 bits or fewer an element, 0 to 1."""
        small = sum(size for name, (_, size) in self.weights.items() if _is_small(name))
        return small / self.weight_bytes if self.weight_bytes else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data for JSON."""
        return {
            "path": str(self.path),
            "bytes": self.file_bytes,
            "ir_version": self.ir_version,
            "opsets": self.opsets,
            "inputs": [{"name": name, "type": kind} for name, kind in self.inputs],
            "outputs": [{"name": name, "type": kind} for name, kind in self.outputs],
            "operators": self.operators,
            "weights": {name: {"tensors": count, "bytes": size} for name, (count, size) in self.weights.items()},
            "weight_bytes": self.weight_bytes,
            "share_in_8_bits": round(self.small_share, 4),
            "nodes": self.nodes,
            "nodes_quantized": self.quantized,
            "nodes_converting": self.conversions,
            "made_by_onnxq": self.made_by,
        }


def inspect(model: ModelInput) -> Inspection:
    """Look into a model; no weight is read.

    Args:
        model: Its path, a ModelProto, or loaded.

    Returns:
        Operators, types, sizes, and how much is quantized.

    Raises:
        ModelError: There is no such file, or it is no readable ONNX model.

    Examples:
        >>> import onnxq
        >>> onnxq.inspect("model.onnx").operators
        {'Conv': 2, 'Relu': 2, 'Flatten': 1, 'Gemm': 1, 'GlobalAveragePool': 1}

    """
    model = read_model(model)
    nodes = list(model.graph.walk())
    operators = Counter(node.operator for node in nodes)
    weights: dict[str, tuple[int, int]] = {}
    for tensor in _constants(model, nodes):
        name = dtype_name(tensor.dtype)
        count, size = weights.get(name, (0, 0))
        weights[name] = (count + 1, size + tensor.nbytes)
    return Inspection(
        path=model.path or IN_MEMORY,
        file_bytes=model_bytes(model),
        ir_version=model.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in model.opsets.items()},
        inputs=tuple((v.name, _describe(model, v)) for v in model.graph.inputs if v.tensor is None),
        outputs=tuple((v.name, _describe(model, v)) for v in model.graph.outputs),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        weights=dict(sorted(weights.items(), key=lambda item: -item[1][1])),
        quantized=sum(map(becomes_integer, nodes)),
        conversions=sum(node.op_type in CONVERSIONS for node in nodes),
        made_by={key: value for key, value in model.metadata.items() if key.startswith("onnxq_")},
    )


def _constants(model: Model, nodes: list[Node]) -> Iterator[Tensor]:
    for value in model.initializers():
        if value.tensor is not None:
            yield value.tensor
    for node in nodes:
        tensor = node.tensor_attribute("value") if node.op_type == "Constant" else None
        if tensor is not None:
            yield tensor


def _describe(model: Model, value: Value) -> str:
    """Write the stated type of an input or output, which needs no inference."""
    stated = model.graph.infos.get(value.name)
    if stated is None:
        return "unknown"
    kind = onnx.ValueInfoProto.FromString(bytes(stated)).type
    if not kind.HasField("tensor_type"):
        return (kind.WhichOneof("value") or "unknown").removesuffix("_type")
    dims = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.tensor_type.shape.dim]
    return dtype_name(kind.tensor_type.elem_type) + (
        f"[{', '.join(dims)}]" if kind.tensor_type.HasField("shape") else ""
    )


def _is_small(name: str) -> bool:
    return name == "bool" or name.lower() in _SMALL


_SMALL = frozenset(
    name.lower()
    for name in TensorProto.DataType.keys()  # noqa: SIM118  (a protobuf enum is no mapping)
    if name.startswith(("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2", "FLOAT8", "FLOAT6", "FLOAT4"))
)
