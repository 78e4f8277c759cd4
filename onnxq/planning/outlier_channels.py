"""Activations whose outlier channels are clipped in 8 bit and added in float: record and recogniser.

Tests: `tests/rescaling/test_outlier_split.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxq.ir import Node


class Range(NamedTuple):
    """The least and the greatest of all channels that are no outliers, zero within; float32."""

    low: np.float32
    high: np.float32


class OutlierClip(NamedTuple):
    """How a value is clipped whose outliers are added: how many channels it has, which they are, where others end."""

    width: int
    channels: tuple[int, ...]
    bounds: Range


def sum_with_outliers(node: Node) -> Node | None:
    """Return the Add of outliers behind a product, or behind the bias of it."""
    result = node.outputs[0]
    while result is not None and (use := result.only_use) is not None:
        after = use.node
        if after.op_type != "Add" or after.domain:
            return None
        term = after.inputs[1]
        if after.inputs[0] is result and term is not None and term.producer and adds_outliers(term.producer):
            return after
        if not any(source is not None and source.constant for source in after.inputs):
            return None  # no bias
        result = after.outputs[0]
    return None


def adds_outliers(node: Node) -> bool:
    """Whether a node is the product of what is beyond a range, which has to stay float."""
    value = node.inputs[0] if node.op_type == "MatMul" and not node.domain and node.inputs else None
    difference = value.producer if value is not None else None
    if difference is None or difference.op_type != "Sub" or difference.domain or len(difference.inputs) != 2:
        return False
    some, clipped = difference.inputs
    maker = clipped.producer if clipped is not None else None
    return maker is not None and maker.op_type == "Clip" and not maker.domain and maker.inputs[0] is some
