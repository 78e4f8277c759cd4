"""The graph engine: models over their protobuf bytes, weights left on disk, changes described as patches.

It knows graphs, not quantization.
"""

from onnxq.ir.commit import commit
from onnxq.ir.graph import Graph, Node, Use, Value
from onnxq.ir.model import IN_MEMORY, Model, ModelInput, encode_proto, load, parse, read_model
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.types import infer_types
from onnxq.ir.storage.files import check_output, save
from onnxq.ir.stored_tensor import StoredTensor
from onnxq.ir.tensor import ArrayTensor, DeferredTensor, Tensor

__all__ = [
    "IN_MEMORY",
    "ArrayTensor",
    "DeferredTensor",
    "Graph",
    "Model",
    "ModelInput",
    "Node",
    "Patch",
    "StoredTensor",
    "Tensor",
    "Use",
    "Value",
    "check_output",
    "commit",
    "encode_proto",
    "infer_types",
    "load",
    "parse",
    "read_model",
    "save",
]
