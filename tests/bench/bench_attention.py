"""Time layers of attention as models are written and with batch and sequence swapped, in turn.

    python tests/bench/bench_attention.py

One thread; the median time of a whole model of four layers, projections of queries, keys and values included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from in_turn import model_times
from onnx import TensorProto, checker, helper, numpy_helper

from onnxq.ir import parse
from onnxq.optimize.sequence_first import put_sequence_first

CASES = (  # samples, places, heads, channels of a head
    (1, 16, 12, 32),
    (1, 48, 12, 32),
    (3, 48, 12, 32),
    (1, 128, 8, 32),
    (4, 128, 8, 32),
    (1, 128, 12, 64),
    (1, 197, 12, 64),
    (4, 128, 12, 64),
    (1, 384, 16, 64),
)
LAYERS, RUNS = 4, 40


def encoder(heads: int, size: int) -> bytes:
    """Four layers of attention with residual connections and normalisations."""
    width, random = heads * size, np.random.default_rng(0)
    constants = {
        "gamma": np.ones(width, np.float32),
        "scale": np.float32(size**-0.5),
        "heads": np.array([0, -1, heads, size]),
        "joined": np.array([0, -1, width]),
    }
    nodes = []

    def add(op_type: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op_type, inputs.split(), [output], **attributes))

    for layer in range(LAYERS):
        source = f"h{layer}" if layer else "x"
        for part, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
            constants[f"w{part}{layer}"] = (random.standard_normal((width, width)) / width).astype(np.float32)
            add("MatMul", f"{source} w{part}{layer}", f"{part}{layer}")
            add("Reshape", f"{part}{layer} heads", f"{part}h{layer}")
            add("Transpose", f"{part}h{layer}", f"{part}t{layer}", perm=order)
        add("MatMul", f"qt{layer} kt{layer}", f"s{layer}")
        add("Mul", f"s{layer} scale", f"m{layer}")
        add("Softmax", f"m{layer}", f"p{layer}", axis=-1)
        add("MatMul", f"p{layer} vt{layer}", f"o{layer}")
        add("Transpose", f"o{layer}", f"ot{layer}", perm=(0, 2, 1, 3))
        add("Reshape", f"ot{layer} joined", f"c{layer}")
        add("Sum", f"c{layer} {source}", f"r{layer}")
        add("LayerNormalization", f"r{layer} gamma", f"h{layer + 1}", axis=-1)
    add("Tanh", f"h{LAYERS}", "y")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "places", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "places", width])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString()


def main() -> None:
    print("batch  places  heads  size  before ms  after ms  ratio")
    for batch, places, heads, size in CASES:
        before = encoder(heads, size)
        model = parse(before)
        put_sequence_first(model)
        feeds = {"x": np.random.default_rng(1).standard_normal((batch, places, heads * size)).astype(np.float32)}
        first, second = (t / 1e3 for t in model_times(before, model.serialize(), feeds, RUNS))
        print(f"{batch:5}{places:8}{heads:7}{size:6}{first:11.2f}{second:10.2f}{second / first:7.2f}")


if __name__ == "__main__":
    main()
