"""Find what onnxruntime fuses by itself in a few nodes, so that no pass writes it a second time.

Tests: `tests/simplify/test_fuse_activations.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxq.ir.encode import encode_node
from onnxq.ir.graph import Node, Value
from onnxq.ir.opset import minimum_ir
from onnxq.ir.storage.temporary import temporary_folder
from onnxq.ir.wire import join
from onnxq.runtime.ort_session import SessionError, Settings, load_native
from onnxq.simplify.regions.single_entry_regions import Subgraph

FENCE = "Floor"  # no part has it, and it is part of no fusion
CODES = ("QuantizeLinear", "DequantizeLinear")
CODES_OPSET = 10  # the first that has them
GRID = (("scale", np.array(0.02, np.float32)), ("zero", np.array(128, np.uint8)))


def operators_left(part: Subgraph, opset: int, *, codes: bool = False) -> tuple[str, ...]:
    """Return the operators of a part of float32 after onnxruntime has optimised it alone; none if it refuses it.

    Something stands before and behind it, because some fusions want that: what they fuse may not be an output.

    Args:
        part: What to optimise.
        opset: Of the model.
        codes: Whether it reads dequantized codes. Every reader then has a DequantizeLinear of its own, and onnxruntime
            does not fuse a part that begins with several of them.

    """
    names: dict[Value, str] = {}
    nodes = [_renamed(node, names) for node in part.nodes]
    steps = (FENCE, *CODES) if codes and opset >= CODES_OPSET else (FENCE,)
    between = ["first", *(f"step{place}" for place in range(1, len(steps))), names[part.entry]]
    nodes[:0] = [
        helper.make_node(step, [between[place], *["scale", "zero"][: 2 * (step in CODES)]], [between[place + 1]])
        for place, step in enumerate(steps)
    ]
    nodes.append(helper.make_node(FENCE, [names[part.value]], ["last"]))
    constants = [
        onnx.numpy_helper.from_array(value.constant.numpy(), name) for value, name in names.items() if value.constant
    ]
    constants += [onnx.numpy_helper.from_array(number, name) for name, number in GRID if len(steps) > 1]
    shape = None if part.entry.shape is None else [d if isinstance(d, int) else None for d in part.entry.shape]
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info("first", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("last", TensorProto.FLOAT, None)],
        constants,
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(minimum_ir(opset), 4))
    return _optimised(model.SerializeToString(deterministic=True))


@cache
def _optimised(model: bytes) -> tuple[str, ...]:
    """Layers repeat the same few nodes: the names in the model are the same for all of them."""
    with temporary_folder() as folder:
        path = folder / "optimised.onnx"
        try:
            load_native(model, Settings("extended", threads=1, save_to=str(path)))
        except SessionError:
            return ()
        return tuple(node.op_type for node in onnx.load(path).graph.node if node.op_type not in (FENCE, *CODES))


def _renamed(node: Node, names: dict[Value, str]) -> onnx.NodeProto:
    proto: onnx.NodeProto = onnx.NodeProto.FromString(join(encode_node(node)))
    proto.name = ""
    proto.input[:] = list(_named(node.inputs, names))
    proto.output[:] = list(_named(node.outputs, names))
    return proto


def _named(values: Sequence[Value | None], names: dict[Value, str]) -> Iterator[str]:
    for value in values:
        yield "" if value is None else names.setdefault(value, f"v{len(names)}")
