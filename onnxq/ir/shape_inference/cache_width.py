"""Sizes of caches that a file leaves open, as attention of onnxruntime asks for them.

onnxruntime-genai's builder gives the width of caches a name, `kv_cache_dim`, as codes of 4 bits would halve it. Caches
of the last tokens alone have a name for their rows as well, of which the window is the least number.
"""

from __future__ import annotations

from onnxq.ir.graph import MICROSOFT, Graph, Node, Value

OPERATOR = "GroupQueryAttention"
PASTS, PRESENTS = (3, 4), (1, 2)  # slots of keys and values: inputs, outputs
SLIDING, WINDOW = "sliding_window_cache", "local_window_size"
CODED = "kv_cache_bit_width"  # of caches that hold codes, some of them two in a byte


def set_cache_widths(graph: Graph) -> None:
    """Set the heads and the width of float caches among the inputs and outputs of a model, where they are open."""
    for node in graph.nodes:
        if node.op_type != OPERATOR or node.domain != MICROSOFT or node.attribute(CODED, 0):
            continue
        heads, width = node.attribute("kv_num_heads"), _head_width(node)
        rows = node.attribute(WINDOW) if node.attribute(SLIDING, 0) else None
        for value in (*_at(node.inputs, PASTS), *_at(node.outputs, PRESENTS)):
            if len(value.shape or ()) == 4 and value.shape is not None and (value.is_input or value.is_output):
                batch, own_heads, length, own_width = value.shape
                value.shape = (batch, _filled(own_heads, heads), _filled(length, rows), _filled(own_width, width))


def is_sliding_cache(value: Value) -> bool:
    """Tell whether an input of a model holds the last tokens alone, none of them at the beginning."""
    return value.is_input and any(
        use.node.op_type == OPERATOR and use.slot in PASTS and use.node.attribute(SLIDING, 0) for use in value.uses
    )


def _head_width(node: Node) -> int | None:
    """Return the width of a head; None where that of queries is not known."""
    query, key = node.input(0), node.input(1)
    size = None if query is None or not query.shape else query.shape[-1]
    heads = node.attribute("num_heads", 0) + (0 if key is not None else 2 * node.attribute("kv_num_heads", 0))
    return size // heads if isinstance(size, int) and heads and not size % heads else None


def _at(values: list[Value | None], slots: tuple[int, ...]) -> list[Value]:
    found = (values[slot] for slot in slots if slot < len(values))
    return [value for value in found if value is not None]


def _filled(size: int | str | None, wanted: int | None) -> int | str | None:
    return size if isinstance(size, int) or wanted is None else wanted
