"""Small models written as text, and what every test of the graph engine asks of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxq.ir import Graph, Model, Node, Value, parse
from onnxq.ir.invariants import problems
from onnxq.ir.passes import normalise

ROOT = Path(__file__).parents[2]
ONNX_DATA = Path(onnx.__file__).parent
MODEL_FILES = sorted(
    [
        *ONNX_DATA.rglob("*.onnx"),
        *(ROOT / "sample_models").glob("*.onnx"),
        *(ROOT / "../shared/arena/models").glob("*.onnx"),
    ]
)
X = np.array([[-2.0, -0.5, 0.25, 3.0], [1.0, 0.0, -1.5, 0.5]], np.float32)


def assert_consistent(model: Model) -> None:
    """Every wire is known at both ends, names resolve to what they stand for, nodes are in topological order."""
    assert list(problems(model)) == []


def text_model(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 17) -> onnx.ModelProto:
    """A model from ONNX's textual graph syntax; `weights` become initializers."""
    ir_version = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    header = f'<ir_version: {max(ir_version, 4)}, opset_import: ["" : {opset}, "my" : 1]>\n'
    proto = onnx.parser.parse_model(header + text)
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def model_of(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 17) -> Model:
    """`text_model`, loaded, and found to be sound."""
    model = parse(text_model(text, weights, opset).SerializeToString())
    assert_consistent(model)
    return model


def node_of(graph: Graph, op_type: str, index: int = 0) -> Node:
    """The nth node of an operator type."""
    return [node for node in graph.nodes if node.op_type == op_type][index]


def value_of(graph: Graph, name: str) -> Value:
    """The value that a name means in a graph."""
    found = graph.find(name)
    assert found is not None
    return found


def ops(graph: Graph) -> list[str]:
    """Operator types in graph order."""
    return [node.op_type for node in graph.nodes]


def normalised(model: Model, *names: str) -> list[str]:
    """Run passes, all or those named, and find the model sound and finished."""
    said = normalise(model, names or None)
    assert_consistent(model)
    assert normalise(model, names or None) == []  # nothing is left to do
    return said
