"""The graph engine: models over their protobuf bytes, weights left on disk, changes described as patches."""

from onnxq.ir.commit import commit
from onnxq.ir.files import check_output, save
from onnxq.ir.graph import Graph, Node, Use, Value
from onnxq.ir.model import Model, load, parse
from onnxq.ir.patch import Patch
from onnxq.ir.stored import StoredTensor
from onnxq.ir.tensor import ArrayTensor, DeferredTensor, Tensor
from onnxq.ir.types import infer_types

__all__ = [
    "ArrayTensor",
    "DeferredTensor",
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
    "infer_types",
    "load",
    "parse",
    "save",
]
