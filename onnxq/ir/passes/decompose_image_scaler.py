"""ImageScaler becomes Mul and Add: CoreML's converter writes it before detectors, and newer operator sets lack it.

Tests: `tests/ir/test_passes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxq.ir.model import Model
from onnxq.ir.passes.registry import describes
from onnxq.ir.patch import Patch
from onnxq.ir.schemas import BROADCASTING


@describes(order=90, note="wrote {} ImageScaler{s} as Mul and Add")
def image_scalers(model: Model) -> Iterator[Patch]:
    """Describe the nodes: y = scale · x + bias, with a bias for each channel; without it, opsets cannot be raised."""
    for node in model.graph.walk():
        data, output = (node.inputs[0], node.outputs[0]) if node.inputs and node.outputs else (None, None)
        if node.op_type != "ImageScaler" or node.domain or data is None or output is None or model.opset < BROADCASTING:
            continue
        scale = np.array(node.attribute("scale", 1.0), np.float32)
        bias = np.array(node.attribute("bias", [0.0]), np.float32).reshape(-1, 1, 1)
        patch = Patch(node.graph, node, "it is no operator of newer opsets")
        scaled = patch.op("Mul", data, patch.constant(scale, f"{output.name}_scale"))
        patch.replace(output, patch.op("Add", scaled, patch.constant(bias, f"{output.name}_bias")))
        yield patch
