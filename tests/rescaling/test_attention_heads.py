"""What can be divided through attention: applied and compared in onnxruntime, and every refusal asserted."""

from __future__ import annotations

import numpy as np
import pytest
from rescale_support import nothing_changes, stays

R = np.random.default_rng(7)
C, HEADS = 6, 2
TOKENS = ["n", "s", 4]
FIRST, LAST = ("MatMul", ["x", "a"], ["h"]), ("MatMul", ["z", "b"], ["y"])


def weight(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "a": weight(4, C),
    "b": weight(C, 5),
    "q": weight(4, C),
    "v": weight(C),
    "apart": np.int64([0, 0, HEADS, C // HEADS]),
    "together": np.int64([0, 0, C]),
}
VALUES = [
    ("Add", ["h", "v"], ["i"]),
    ("Reshape", ["i", "apart"], ["v4"]),
    ("Transpose", ["v4"], ["vh"], {"perm": [0, 2, 1, 3]}),
]
SHARES = [
    ("MatMul", ["x", "q"], ["r"]),
    ("Reshape", ["r", "apart"], ["r4"]),
    ("Transpose", ["r4"], ["qh"], {"perm": [0, 2, 1, 3]}),
    ("Transpose", ["r4"], ["kh"], {"perm": [0, 2, 3, 1]}),
    ("MatMul", ["qh", "kh"], ["scores"]),
    ("Softmax", ["scores"], ["p"], {"axis": -1}),
]
MIXED = [("MatMul", ["p", "vh"], ["m"]), ("Transpose", ["m"], ["mt"], {"perm": [0, 2, 1, 3]})]
TOGETHER = ("Reshape", ["mt", "together"], ["z"])

FREE = {
    "heads": ([FIRST, *VALUES, *SHARES, *MIXED, TOGETHER, LAST], TOKENS, WEIGHTS),
    "one head": (
        [
            FIRST,
            ("MatMul", ["x", "q"], ["r"]),
            ("Transpose", ["r"], ["t"], {"perm": [0, 2, 1]}),
            ("MatMul", ["r", "t"], ["p"]),
            ("MatMul", ["p", "h"], ["z"]),
            LAST,
        ],
        TOKENS,
        WEIGHTS,
    ),
    "[tokens, batch * heads, size], as torch.nn.MultiheadAttention has them": (
        [
            FIRST,
            ("Reshape", ["h", "apart"], ["h3"]),
            ("Transpose", ["h3"], ["vh"], {"perm": [1, 0, 2]}),
            ("MatMul", ["x", "q"], ["r"]),
            ("Reshape", ["r", "apart"], ["r3"]),
            ("Transpose", ["r3"], ["qh"], {"perm": [1, 0, 2]}),
            ("Transpose", ["qh"], ["kh"], {"perm": [0, 2, 1]}),
            ("MatMul", ["qh", "kh"], ["p"]),
            ("MatMul", ["p", "vh"], ["m"]),
            ("Transpose", ["m"], ["mt"], {"perm": [1, 0, 2]}),
            TOGETHER,
            LAST,
        ],
        ["s", 1, 4],
        WEIGHTS | {"apart": np.int64([0, HEADS, C // HEADS]), "together": np.int64([0, 1, C])},
    ),
    "put together for a Gemm": (
        [FIRST, *VALUES, *SHARES, *MIXED, ("Reshape", ["mt", "rows"], ["z"]), ("Gemm", ["z", "b"], ["y"])],
        TOKENS,
        WEIGHTS | {"rows": np.int64([-1, C])},
    ),
    "shares that are the same for all heads": (
        [FIRST, *VALUES, ("MatMul", ["s", "vh"], ["m"]), *MIXED[1:], TOGETHER, LAST],
        ["n", 3, 4],
        WEIGHTS | {"s": weight(3, 3)},
    ),
}
OPEN = {
    "values that are keys as well": (
        [
            FIRST,
            *VALUES,
            ("Transpose", ["vh"], ["kh"], {"perm": [0, 1, 3, 2]}),
            ("MatMul", ["vh", "kh"], ["p"]),
            *MIXED,
            TOGETHER,
            LAST,
        ],
        TOKENS,
        WEIGHTS,
    ),
    "channels in another order": (
        [
            FIRST,
            *VALUES,
            *SHARES,
            *MIXED,
            ("Transpose", ["mt"], ["turned"], {"perm": [0, 1, 3, 2]}),
            ("Reshape", ["turned", "together"], ["z"]),
            LAST,
        ],
        TOKENS,
        WEIGHTS,
    ),
    "values that are kept for the next call": (
        [FIRST, *VALUES, *SHARES, *MIXED, TOGETHER, LAST, ("Concat", ["vh", "vh"], ["y2"], {"axis": 2})],
        TOKENS,
        WEIGHTS,
    ),
    "heads of another size": (
        [FIRST, *VALUES, *SHARES, *MIXED, ("Reshape", ["mt", "halves"], ["z"]), ("MatMul", ["z", "b3"], ["y"])],
        TOKENS,
        WEIGHTS | {"halves": np.int64([0, -1, C // 2]), "b3": weight(C // 2, 5)},
    ),
    "channels that a product sums over": (
        [
            FIRST,
            ("Transpose", ["h"], ["t"], {"perm": [0, 2, 1]}),
            ("MatMul", ["s", "t"], ["u"]),
            ("Transpose", ["u"], ["z"], {"perm": [0, 2, 1]}),
            LAST,
        ],
        TOKENS,
        WEIGHTS | {"s": weight(1, C, C)},
    ),
    "a product with itself": (
        [FIRST, ("MatMul", ["h", "h"], ["z"]), LAST],
        ["n", C, 4],
        WEIGHTS,
    ),
}


@pytest.mark.parametrize("case", FREE)
def test_the_projection_of_the_values_takes_the_factors_up(case):
    nothing_changes(*FREE[case])


@pytest.mark.parametrize("case", OPEN)
def test_what_mixes_channels_or_takes_them_elsewhere_keeps_a_value_as_it_is(case):
    stays(*OPEN[case])
