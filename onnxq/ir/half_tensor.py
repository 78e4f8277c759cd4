"""Constants that a file holds in 16-bit floats and that the graph reads as float32.

Tests: `tests/pipeline/test_graph_types.py`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxq.ir.commit import commit
from onnxq.ir.model import STRIP_ABOVE, Model
from onnxq.ir.patch import Patch
from onnxq.ir.tensor import DeferredTensor, Tensor

HALF_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


class WidenedTensor(DeferredTensor):
    """A constant as float32, computed from its 16-bit elements when they are read.

    Args:
        narrow: The constant as the file holds it.

    """

    def __init__(self, narrow: Tensor) -> None:
        super().__init__(TensorProto.FLOAT, narrow.shape, lambda: narrow.numpy().astype(np.float32))
        self.narrow = narrow


def store_narrow(model: Model) -> None:
    """Store what is left of widened constants in 16 bit again, behind a Cast, which onnxruntime folds when it loads."""
    patches = []
    for value in list(model.initializers()):
        tensor = value.tensor
        if not isinstance(tensor, WidenedTensor) or tensor.nbytes <= STRIP_ABOVE or value.is_output or value.is_input:
            continue
        patch = Patch(value.graph, reason="a 16-bit constant is stored in 16 bits")
        stored = patch.constant(tensor.narrow, f"{value.name}_16bit")
        patch.replace(value, patch.op("Cast", stored, hint=f"{value.name}_cast", to=int(TensorProto.FLOAT)))
        patches.append(patch)
    commit(patches)
