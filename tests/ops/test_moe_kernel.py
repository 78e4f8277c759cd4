"""MoE in NumPy gives what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import floats, run
from test_mixture_of_experts import EXPERTS, WIDTH, mixture

from onnxq import evaluate
from onnxq.ops.kernels.arrays import NotCovered
from onnxq.ops.kernels.mixture_of_experts import mixture_of_experts


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity", "swiglu", "limited"])
def test_it_gives_what_onnxruntime_gives(kind, biased):
    proto = mixture(gated=kind in ("swiglu", "limited"), biased=biased)
    node = proto.graph.node[-1]
    if kind not in ("swiglu", "limited"):
        next(one for one in node.attribute if one.name == "activation_type").s = kind.encode()
    if kind == "limited":
        for name, number in (("swiglu_limit", 0.5), ("activation_alpha", 1.7), ("activation_beta", 1.0)):
            attribute = node.attribute.add()
            attribute.name, attribute.f, attribute.type = name, number, 1
    given = {"x": floats(2, 5, WIDTH, seed=9)}
    (expected,) = run(proto.SerializeToString(), given)
    np.testing.assert_allclose(evaluate(proto, given)["y"], expected, atol=2e-5 * np.abs(expected).max())


def test_other_routings_are_left_to_others():
    x, router = floats(3, WIDTH), floats(3, EXPERTS)
    with pytest.raises(NotCovered):
        mixture_of_experts(x, router, floats(EXPERTS, 8, WIDTH), None, floats(EXPERTS, WIDTH, 8))
