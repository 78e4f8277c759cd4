"""How the cost of quantizing grows with the graph: chains of 4,000 and 8,000 MatMul+Relu nodes, dynamic.

    python tests/bench/bench_chain.py

Prints the seconds of every step and the ratio between the two lengths. All but `verify` is onnxq; `verify`
is onnxruntime loading both graphs, optimising and running them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.pipeline.quantize import quantize

SIZE = 16


def chain(length: int) -> onnx.ModelProto:
    """A chain of MatMul and Relu over weights that keep the signal alive."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for index in range(length):
        weight = np.eye(SIZE, dtype=np.float32) + random.standard_normal((SIZE, SIZE)).astype(np.float32) * 0.001
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"], name=f"matmul{index}"))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"], name=f"relu{index}"))
        value = f"r{index}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])]
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, SIZE])]
    graph = helper.make_graph(nodes, "chain", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Clock:
    """Times the steps of a run."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, float]] = []

    def step(self, name: str) -> None:
        """A step begins."""
        self.marks.append((name, time.perf_counter()))

    def progress(self, done: int, total: int | None) -> None:
        """Not timed."""

    def seconds(self) -> dict[str, float]:
        """Seconds of every step; call it right after the run."""
        self.step("end")
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return {name: after - before for (name, before), (_, after) in pairs}


def measure(length: int) -> dict[str, float]:
    """Quantize a chain three times and keep the fastest run of every step."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "chain.onnx"
        onnx.save(chain(length), source)
        best: dict[str, float] = {}
        for _ in range(3):
            clock = Clock()
            quantize(source, "dynamic-int8", output=Path(folder) / "out.onnx", force=True, observer=clock)
            for name, seconds in clock.seconds().items():
                best[name] = min(seconds, best.get(name, seconds))
    return best


def ours(steps: dict[str, float]) -> float:
    """Seconds outside onnxruntime."""
    return sum(seconds for name, seconds in steps.items() if name != "verify")


@pytest.mark.bench
def test_cost_is_linear_and_under_two_seconds() -> None:
    short, long = measure(4000), measure(8000)
    assert ours(short) < 2.0
    assert ours(long) / ours(short) <= 2.3


def main() -> None:
    rows = {length: measure(length) for length in (4000, 8000)}
    names = list(rows[4000])
    print("nodes  " + "".join(f"{name:>11}" for name in names) + f"{'onnxq':>11}{'in all':>11}")
    for length, steps in rows.items():
        cells = [*(steps[name] for name in names), ours(steps), sum(steps.values())]
        print(f"{2 * length:6d} " + "".join(f"{seconds:9.2f} s" for seconds in cells))
    ratios = [*(rows[8000][name] / max(rows[4000][name], 1e-9) for name in names)]
    ratios += [ours(rows[8000]) / ours(rows[4000]), sum(rows[8000].values()) / sum(rows[4000].values())]
    print("ratio  " + "".join(f"{ratio:11.2f}" for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
