"""The cases of the onnx project for these operators, at every opset that is stored, compared exactly."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from node_cases import node_cases
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from quantized_support import array_of, differing, run_node

STORED = Path(__file__).parents[2] / "../shared/conformance"
WORDS = ("quantizelinear", "qlinear", "convinteger", "matmulinteger")

stored_cases = sorted(p.parent.relative_to(STORED).as_posix() for p in STORED.glob("*/*/model.onnx"))


class QuantizeLinear(OpRun):
    """Our kernel inside the function body of an `_expanded` case; the other nodes are the reference's."""

    op_domain = ""

    def _run(self, x, scale, zero_point=None, **attributes):
        from onnxq.ops import quantize_linear

        return (quantize_linear(x, scale, zero_point, axis=attributes["axis"]),)


def outputs_of(model: onnx.ModelProto, inputs):
    opset = next(o.version for o in model.opset_import if o.domain == "")
    if len(model.graph.node) == 1:
        node = model.graph.node[0]
        given = dict(zip([i.name for i in model.graph.input], inputs, strict=True))
        return run_node(node, [given[name] if name else None for name in node.input], opset)
    feeds = dict(zip([i.name for i in model.graph.input], inputs, strict=True))
    return ReferenceEvaluator(model, new_ops=[QuantizeLinear]).run(None, feeds)


def check(model, inputs, expected):
    got = [np.asarray(v) for v in outputs_of(model, inputs)]
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert differing(mine, theirs) == 0


@pytest.mark.skipif(not stored_cases, reason="the stored cases are not here")
def test_all_stored_cases_are_seen():
    assert len(stored_cases) == 89


@pytest.mark.parametrize("case", stored_cases)
def test_stored_case(case):
    folder = STORED / case
    model = onnx.load(folder / "model.onnx")
    for data in sorted(folder.glob("test_data_set_*")):
        read = {
            kind: [
                array_of(onnx.load_tensor(data / f"{kind}_{n}.pb")) for n in range(len(list(data.glob(f"{kind}_*.pb"))))
            ]
            for kind in ("input", "output")
        }
        check(model, read["input"], read["output"])


@cache
def generated():
    return {c.name: c for c in node_cases() if any(word in c.name for word in WORDS)}


TYPES = ["uint16", "int16", "uint4", "int4", "uint2", "int2", "float4e2m1", "e4m3fn", "e5m2", "axis"]
SUFFIXES = {
    "convinteger": ["_with_padding", "_without_padding"],
    "dequantizelinear": ["", "_blocked", "_e4m3fn_float16", "_e4m3fn_zero_point", *(f"_{t}" for t in TYPES)],
    "quantizelinear": ["", "_blocked_asymmetric", "_blocked_symmetric", *(f"_{t}" for t in TYPES)],
    "dynamicquantizelinear": [f"{t}{e}" for t in ("", "_max_adjusted", "_min_adjusted") for e in ("", "_expanded")],
    "matmulinteger": [""],
    "qlinearconv": [""],
    "qlinearmatmul": [f"_{d}_{t}_{f}" for d in ("2D", "3D") for t in ("uint8", "int8") for f in ("float32", "float16")],
}
GENERATED = [f"test_{operator}{suffix}" for operator, suffixes in SUFFIXES.items() for suffix in suffixes]


def test_the_list_of_generated_cases_is_complete():
    assert sorted(generated()) == sorted(GENERATED)
    assert len(GENERATED) == 45


@pytest.mark.parametrize("name", GENERATED)
def test_generated_case(name):
    case = generated()[name]
    for inputs, outputs in case.data_sets:
        check(case.model, [array_of(v) for v in inputs], [array_of(v) for v in outputs])
