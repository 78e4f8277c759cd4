"""The graph engine: models over their protobuf bytes, weights left on disk, changes described as patches."""

from onnxq.ir.graph import Graph, Node, Use, Value
from onnxq.ir.model import Model, load, parse
from onnxq.ir.patch import Patch, commit
from onnxq.ir.save import check_output, save
from onnxq.ir.tensor import ArrayTensor, StoredTensor, Tensor

__all__ = [
    "ArrayTensor",
    "Graph",
    "Model",
    "Node",
    "Patch",
    "StoredTensor",
    "Tensor",
    "Use",
    "Value",
    "check_output",
    "commit",
    "load",
    "parse",
    "save",
]
