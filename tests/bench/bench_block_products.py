"""Time MatMulNBits and DynamicQuantizeMatMul against the float product, by bits, block size and number of rows.

    python tests/bench/bench_block_products.py [--inner 1024] [--columns 1024]

All sessions run in turn on one thread; each cell is the median of the ratio of processor time to the float product. One
row is one token of a decoder, 128 rows are a prompt.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

ROWS, TURNS = (1, 16, 32, 48, 128, 512), 14
CASES = [
    ("float", 0, 0, 0, False),
    *((f"{bits} bits, blocks of {block}", bits, block, 4, False) for bits in (2, 4, 8) for block in (32, 64, 128)),
    ("4 bits, blocks of 32, symmetric", 4, 32, 4, True),
    *((f"4 bits, blocks of {block}, level 1", 4, block, 1, False) for block in (32, 64, 128)),
    ("8 bits, blocks of 32, level 1", 8, 32, 1, False),
    ("8 bits, a scale a column, activations in 8 bits", 8, 0, 4, True),
]


def product(inner: int, columns: int, bits: int, block: int, level: int, symmetric: bool) -> bytes:
    """Return a model of one product; MatMul for 0 bits."""
    rng = np.random.default_rng(0)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", inner), ("y", columns))
    ]
    if not bits:
        arrays = {"w": rng.standard_normal((inner, columns), dtype=np.float32)}
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    elif not block:
        codes = rng.integers(-127, 128, (inner, columns), dtype=np.int8)
        arrays = {"w": codes, "s": rng.random(columns, dtype=np.float32) / 100}
        node = helper.make_node("DynamicQuantizeMatMul", ["x", *arrays], ["y"], domain="com.microsoft")
    else:
        count = -(-inner // block)
        arrays = {
            "w": rng.integers(0, 256, (columns, count, block * bits // 8), dtype=np.uint8),
            "s": rng.random((columns, count), dtype=np.float32) / 100,
        }
        if not symmetric:
            arrays["z"] = rng.integers(0, 256, (columns, -(-count * bits // 8)), dtype=np.uint8)
        settings = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
        node = helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **settings)
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1024)
    arguments = parser.parse_args()
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    sessions = {
        name: ort.InferenceSession(product(arguments.inner, arguments.columns, *how), options) for name, *how in CASES
    }
    found: dict[str, list[float]] = {name: [] for name in sessions}
    for rows in ROWS:
        feeds = {"x": np.random.default_rng(1).standard_normal((rows, arguments.inner), dtype=np.float32)}
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(TURNS):
            for name, session in sessions.items():
                begun = time.process_time()
                session.run(None, feeds)
                times[name].append(time.process_time() - begun)
        for name, measured in times.items():
            found[name].append(float(np.median(np.array(measured[2:]) / np.array(times["float"][2:]))))
    print(f"| | {' | '.join(f'{rows} rows' for rows in ROWS)} |\n|---|{'---:|' * len(ROWS)}")
    for name, ratios in found.items():
        print(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")


if __name__ == "__main__":
    main()
