"""Time in onnxruntime what `onnxq.simplify` weighs against each other: operators alone, and decomposed functions.

    python tests/bench/bench_simplify.py

Prints nanoseconds an element of every operator that a decomposed function may consist of, beside the figure that
`simplify.known_functions` decides by, and how long decomposed functions take before and after, as a ratio; then small
transformers with and without the arithmetic about sizes that exporters write into every layer. CPU time of
one thread, so that other work on the machine hardly matters. The exit code is 1 where a function became slower.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "simplify"))
from exported_support import WORDS, bert_like, gpt_like
from support import simplified
from test_fuse_activations import CASES, STAY, spelled

from onnxq.simplify.known_functions import NANOSECONDS

SHAPE = (1, 512, 512)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
RUNS = 40
BINARY = {"Add": 1.3, "Sub": 1.3, "Mul": 1.3, "Div": 1.3, "Pow": 3.0, "Max": 0.5, "Min": 0.5}
COMPARED = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
NOT_ALONE = ("FastGelu", "Identity", "Not", "QuickGelu", "Where")  # fused forms, and operators on booleans


def model_of(op_type: str) -> onnx.ModelProto:
    inputs, constants = ["x"], []
    if op_type in (*BINARY, *COMPARED, "Clip"):
        inputs.append("c")
        constants.append(numpy_helper.from_array(np.float32(BINARY.get(op_type, 0.0)), "c"))
    kind = TensorProto.BOOL if op_type in COMPARED else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", kind, SHAPE)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def seconds(*models: bytes, feeds: dict[str, np.ndarray] | None = None) -> list[float]:
    """CPU seconds of a run of each model, the lower fifth of many; they take turns."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    sessions = [ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(RUNS):
        for session, taken in zip(sessions, times, strict=True):
            start = time.thread_time()
            session.run(None, feeds or {"x": X})
            taken.append(time.thread_time() - start)
    return [float(np.quantile(taken, 0.2)) for taken in times]


def main() -> int:
    print(f"{'operator':16} {'ns':>7} {'table':>7}")
    for op_type, stated in sorted(NANOSECONDS.items()):
        if op_type not in NOT_ALONE:
            (taken,) = seconds(model_of(op_type).SerializeToString())
            print(f"{op_type:16} {taken * 1e9 / X.size:7.3f} {stated:7.3f}")
    print(f"\n{'function':40} {'ms':>7} {'after':>7}")
    slower = 0
    for name, steps in [*((name, steps) for name, (steps, _) in CASES.items()), *STAY.items()]:
        proto = spelled(*steps, shape=SHAPE)
        before, after = seconds(proto.SerializeToString(), simplified(proto, "fuse_activations").model.serialize())
        slower += after > 1.05 * before
        print(f"{name:40} {before * 1e3:7.3f} {after / before:7.2f}")
    print(f"\n{'six layers':40} {'ms':>7} {'after':>7}")
    ids = np.arange(12).reshape(1, 12) % WORDS
    for model, feeds in ((gpt_like, {"ids": ids}), (bert_like, {"ids": ids, "attention": np.ones_like(ids)})):
        proto = model(layers=6)
        after_all = simplified(proto, "fold_shape_computations", "share_shape_computations").model.serialize()
        before, after = seconds(proto.SerializeToString(), after_all, feeds=feeds)
        slower += after > 1.05 * before
        print(f"{model.__name__:40} {before * 1e3:7.3f} {after / before:7.2f}")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
