"""A few lines over `onnx.helper` to write a graph node by node, with the weights stored as raw bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Nodes and initializers in the order in which they are written.

    `numeric` names tensors and nodes as PyTorch did until 1.12 ("19", "Conv_0"); otherwise a tensor is named after its
    node ("/conv1/Conv_output_0"), as in PyTorch 1.13 to 2.4, or gets the node's name without "node_", as in the
    exporter that came with PyTorch 2.5.
    """

    def __init__(self, numeric: bool = False) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.numeric = numeric
        self.next_number = 19  # where old exports began depended on the number of parameters

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def constant(self, name: str, value: Any, dtype: type = np.int64) -> str:
        """A `Constant` node, as exporters write the constants that come from code rather than from parameters."""
        return self.op("Constant", [], name, value=numpy_helper.from_array(np.array(value, dtype)))

    def op(self, op_type: str, inputs: list[str], name: str = "", output: str = "", **attributes: Any) -> str:
        """One node with one named output, which is returned."""
        if self.numeric:
            name = f"{op_type}_{len(self.nodes)}"
            output = output or str(self.next_number)
            self.next_number += 1
        elif name.startswith("node_"):
            output = output or name.removeprefix("node_")
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name, **attributes))
        return output

    def node(self, op_type: str, inputs: list[str], outputs: list[str], name: str, **attributes: Any) -> list[str]:
        """One node with several outputs; "" leaves an optional one out."""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, **attributes))
        return outputs

    def body(self, name: str, output: str) -> onnx.GraphProto:
        """This graph as the body of an `If`: no inputs, it reads what the graph around it has."""
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 10])
        return helper.make_graph(self.nodes, name, [], [result], self.weights)

    def model(self, name: str, opset: int, ir_version: int, weights_as_inputs: bool = False) -> onnx.ModelProto:
        """A checked model with the input `image` and the output `logits`."""
        inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])]
        if weights_as_inputs:
            inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in self.weights]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=ir_version,
            producer_name="onnxq sample_models/train.py",
        )
        onnx.checker.check_model(model, full_check=True)
        return model
