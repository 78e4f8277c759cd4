"""Time what a detector does to its boxes and scores as it is and as onnxq writes it for onnxruntime, in turn.

    python tests/bench/bench_boxes.py

One thread; the median time of the model: centres and sizes of boxes to their corners, and Softmax over two classes.
"""

from __future__ import annotations

import numpy as np
from in_turn import model_times
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxq.ir import infer_types, parse
from onnxq.ir.pass_manager import apply_changes
from onnxq.optimize.coordinates_first import put_coordinates_first
from onnxq.optimize.pairwise_difference import join_differences
from onnxq.simplify import simplify

ROWS = (1000, 4420, 17640)
RUNS = 200


def model(kind: str, rows: int) -> ModelProto:
    random = np.random.default_rng(0)
    weights = {"halves": np.array([2, 2]), "tenth": np.float32(0.1), "prior": random.random((1, rows, 2), np.float32)}
    steps = {
        "boxes": [
            helper.make_node("Split", ["x", "halves"], ["p", "q"], axis=-1),
            helper.make_node("Mul", ["p", "tenth"], ["r"]),
            helper.make_node("Add", ["r", "prior"], ["c"]),
            helper.make_node("Exp", ["q"], ["s"]),
            helper.make_node("Concat", ["c", "s"], ["j"], axis=-1),
            helper.make_node("Split", ["j", "halves"], ["t", "u"], axis=-1),
            helper.make_node("Sub", ["t", "u"], ["a"]),
            helper.make_node("Add", ["t", "u"], ["b"]),
            helper.make_node("Concat", ["a", "b"], ["y"], axis=-1),
        ],
        "scores": [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
    }[kind]
    read = {name for step in steps for name in step.input}
    graph = helper.make_graph(
        steps,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, rows, 4 if kind == "boxes" else 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights[name], name) for name in sorted(read & set(weights))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    print(f"{'':8}{'rows':>8}{'as it is, µs':>14}{'written, µs':>14}  ratio")
    for kind, columns in (("boxes", 4), ("scores", 2)):
        for rows in ROWS:
            before = model(kind, rows).SerializeToString()
            made = parse(before)
            infer_types(made)
            made = simplify(made).model
            apply_changes(made, join_differences(made))
            apply_changes(made, put_coordinates_first(made))
            feeds = {"x": np.random.default_rng(0).standard_normal((1, rows, columns)).astype(np.float32)}
            a, b = model_times(before, made.serialize(), feeds, RUNS)
            print(f"{kind:8}{rows:8}{a:14.0f}{b:14.0f}{b / a:7.2f}")


if __name__ == "__main__":
    main()
