"""Float Convs whose sums follow the width of a processor's vectors.

onnxruntime lays channels of float Convs out in blocks of one vector: 16 with AVX-512, 8 with AVX2. A window then adds
block by block, so that last bits differ, and codes behind them: SQNR of a trial moves by 0.1 dB. Left out, the layout
costs a float PP-OCR detector half its time again, and its trials with many float Convs 0.8 of theirs. Convs of one
place, of a few channels and depthwise ones add in one order in any layout. Intel Xeon (Sapphire Rapids), masked to
AVX2, onnxruntime 1.32, 26 November 2026.

Tests: `tests/runtime/test_blocked_layout.py`.
"""

from __future__ import annotations

import math

from onnxq.ir import Graph, Model, Node

BLOCKED_LAYOUT = "NchwcTransformer"  # the optimisation of onnxruntime
LEAST_CHANNELS = 4  # that are read in blocks
WIDEST = 16  # channels of a block
# Their sums over a map have another order in blocks
AVERAGING = ("AveragePool", "BatchNormalization", "GlobalAveragePool", "Resize", "Upsample")


def sums_by_blocks(model: Model) -> bool:
    """Whether a model has float Convs whose sums follow the width of vectors, in any of its graphs."""
    return any(_sums_by_blocks(graph) for graph in model.graph.graphs())


def _sums_by_blocks(graph: Graph) -> bool:
    convs = [node for node in graph.nodes if node.op_type in ("Conv", "FusedConv") and _in_float(node)]
    if any(_adds_over_windows(conv) for conv in convs):
        return True
    some_in_blocks = any(_group(conv) > 1 and _filters(conv) % WIDEST for conv in convs)
    return some_in_blocks and any(node.op_type in AVERAGING for node in graph.nodes)


def _in_float(conv: Node) -> bool:
    """Whether a Conv reads anything that is not between Q/DQ pairs."""
    makers = [value.producer if value is not None else None for value in conv.inputs[:2]]
    return any(maker is None or maker.op_type != "DequantizeLinear" for maker in makers)


def _adds_over_windows(conv: Node) -> bool:
    sizes = _sizes(conv)
    return not sizes or (sizes[1] >= LEAST_CHANNELS and math.prod(sizes[2:]) > 1)


def _filters(conv: Node) -> int:
    return next(iter(_sizes(conv)), 1)


def _group(conv: Node) -> int:
    return int(conv.attribute("group", 1))


def _sizes(conv: Node) -> tuple[int, ...]:
    """Return the shape of a weight; () where it is not known."""
    weight = conv.input(1)
    shape = weight.shape if weight is not None else None
    known = tuple(size for size in shape or () if isinstance(size, int))
    return known if shape is not None and len(known) == len(shape) else ()
