"""Time transpositions as they are and as onnxq writes them for onnxruntime, in turn.

    python tests/bench/bench_transpose.py

One thread; the median time of the model.
"""

from __future__ import annotations

import numpy as np
from in_turn import model_times
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import infer_types, parse
from onnxq.ir.pass_manager import apply_changes
from onnxq.optimize.row_transposes import move_single_axes

CASES = (  # operator, shape, attributes
    ("Transpose", (1, 1, 3, 3, 224, 224), {"perm": (0, 1, 4, 2, 5, 3)}),
    ("Transpose", (1, 3, 2, 2, 128, 128), {"perm": (0, 1, 4, 2, 5, 3)}),
    ("Transpose", (1, 64, 2, 2, 32, 32), {"perm": (0, 1, 4, 2, 5, 3)}),
    ("Transpose", (1, 16, 32, 2, 32, 2), {"perm": (0, 1, 3, 5, 2, 4)}),
    ("Transpose", (8, 3, 32, 64, 2), {"perm": (1, 0, 4, 3, 2)}),
    ("Transpose", (32, 48, 64, 4), {"perm": (2, 3, 0, 1)}),
    ("Transpose", (32, 48, 64, 4), {"perm": (3, 2, 1, 0)}),
    ("DepthToSpace", (1, 9, 224, 224), {"blocksize": 3, "mode": "CRD"}),
    ("DepthToSpace", (1, 12, 128, 128), {"blocksize": 2, "mode": "DCR"}),
    ("DepthToSpace", (1, 256, 32, 32), {"blocksize": 2, "mode": "CRD"}),
)
RUNS = 40


def main() -> None:
    print(f"{'':14}{'shape':26}{'order':22}{'uint8 µs':>16}  ratio{'float µs':>16}  ratio")
    for kind, shape, attributes in CASES:
        figures = ""
        for element, dtype in ((TensorProto.UINT8, np.uint8), (TensorProto.FLOAT, np.float32)):
            graph = helper.make_graph(
                [helper.make_node(kind, ["x"], ["z"], **attributes), helper.make_node("Reshape", ["z", "s"], ["y"])],
                "order",
                [helper.make_tensor_value_info("x", element, shape)],
                [helper.make_tensor_value_info("y", element, None)],
                [numpy_helper.from_array(np.array([shape[0], -1, shape[-1]]), "s")],
            )
            opsets = [helper.make_opsetid("", 17)]
            before = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
            model = parse(before)
            infer_types(model)
            count = apply_changes(model, move_single_axes(model))
            feeds = {"x": np.random.default_rng(0).integers(0, 255, shape).astype(dtype)}
            a, b = model_times(before, model.serialize(), feeds, RUNS)
            figures += f"{a:8.0f}{b:8.0f}{b / a:7.2f}" if count else f"{a:8.0f}{'':>15}"
        order = " ".join(str(value) for value in attributes.values())
        print(f"{kind:14}{'×'.join(map(str, shape)):26}{order:22}{figures}")


if __name__ == "__main__":
    main()
