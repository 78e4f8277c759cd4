"""The graph engine: models over their protobuf bytes, weights left on disk, changes described as patches.

It knows graphs, not quantization.
"""

from onnxq.ir.commit import commit
from onnxq.ir.graph import Graph, Node, Use, Value
from onnxq.ir.model import Model, load, parse
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types
from onnxq.ir.storage.files import check_output, save
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.ir.tensor import ArrayTensor, DeferredTensor, Tensor

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
