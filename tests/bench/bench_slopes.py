"""Time PRelu with slopes for channels as it is and as onnxq spells it for onnxruntime, in turn.

    python tests/bench/bench_slopes.py

One thread; the median time of the model.
"""

from __future__ import annotations

import numpy as np
from in_turn import model_times
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import infer_types, parse
from onnxq.ir.pass_manager import apply_changes
from onnxq.optimize.prelu import spell_slopes

SHAPES = ((1, 16, 128, 128), (1, 64, 32, 32), (1, 128, 16, 16), (1, 192, 8, 8), (8, 512))
RUNS = 60


def main() -> None:
    print(f"{'shape':16}{'slopes':>8}{'PRelu µs':>12}{'spelled µs':>12}  ratio")
    for shape in SHAPES:
        for most in (0.5, 1.5):
            slope = np.linspace(-0.2, most, shape[1], dtype=np.float32).reshape(shape[1], *[1] * (len(shape) - 2))
            graph = helper.make_graph(
                [helper.make_node("PRelu", ["x", "a"], ["y"])],
                "slopes",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                [numpy_helper.from_array(slope, "a")],
            )
            opsets = [helper.make_opsetid("", 17)]
            before = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
            model = parse(before)
            infer_types(model)
            apply_changes(model, spell_slopes(model))
            feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
            a, b = model_times(before, model.serialize(), feeds, RUNS)
            print(f"{'×'.join(map(str, shape)):16}{f'to {most}':>8}{a:12.0f}{b:12.0f}{b / a:7.2f}")


if __name__ == "__main__":
    main()
