"""Count the windows of a pool, which ONNX shape inference overestimates in some cases.

With `ceil_mode`, a window that would start behind the input is left out, by the description of the operators, by
PyTorch, and by onnxruntime. Inference (onnx 1.23) knows that from operator set 22 on, for a window that fits into the
padded input. If a node has `pads` and `auto_pad`, inference takes the former and onnxruntime the latter.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.shape_inference.padding import NOT_SET, auto_pad_of, pads_of

POOLS = ("AveragePool", "LpPool", "MaxPool")


def window_count(size: int, span: int, stride: int, pads: tuple[int, int], *, ceil_mode: bool, pool: bool) -> int:
    """Count the windows along an axis; negative where none comes near to fit.

    If a pool's window reaches beyond the padded input by less than a stride, the formula leaves none. onnxruntime and
    ONNX shape inference divide towards zero and keep one (https://github.com/microsoft/onnxruntime/issues/25234). This
    function does the same. A Conv of that kind does not run.

    Args:
        size: Of the input.
        span: From the first element of a window to behind the last.
        stride: From one window to the next.
        pads: Padding in front and behind.
        ceil_mode: Whether the last window may reach beyond the padding.
        pool: Whether a pool slides them.

    """
    room = size + sum(pads) - span
    count = (-(-room // stride) if ceil_mode or (pool and room < 0) else room // stride) + 1
    return count - (ceil_mode and (count - 1) * stride >= size + pads[0])


def miscounted(graph: Graph) -> Iterator[Value]:
    """Set the shapes of those outputs of pools that inference has got wrong, and give them."""
    for node in graph.nodes:
        if node.op_type in POOLS and not node.domain and _is_doubtful(node):
            shape = _pooled(node)
            for output in node.outputs:
                if shape is not None and output is not None and output.shape is not None and output.shape != shape:
                    output.shape = shape
                    yield output


def _is_doubtful(node: Node) -> bool:
    return bool(node.attribute("ceil_mode", 0)) or (auto_pad_of(node) != NOT_SET and bool(node.attribute("pads")))


def _pooled(node: Node) -> tuple[int | str | None, ...] | None:
    """Return the shape behind a pool as far as it is known, None where its attributes say nothing about it."""
    given = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    result = node.outputs[0].shape if node.outputs and node.outputs[0] is not None else None
    rank = len(given or ()) - 2
    kernel = node.attribute("kernel_shape", [])
    strides, dilations = (node.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    pads, ceil = pads_of(node, rank), bool(node.attribute("ceil_mode", 0))
    fits = len(kernel) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank and min(strides) > 0
    if given is None or result is None or len(result) != rank + 2 or not fits:
        return None
    sizes, same = list(result), auto_pad_of(node).startswith("SAME")
    for axis, size in enumerate(given[2:]):
        if isinstance(size, int):
            span, ends = (kernel[axis] - 1) * dilations[axis] + 1, (pads[axis], pads[axis + rank])
            if same:
                sizes[axis + 2] = -(-size // strides[axis])
            else:
                sizes[axis + 2] = window_count(size, span, strides[axis], ends, ceil_mode=ceil, pool=True)
    return tuple(sizes) if all(not isinstance(size, int) or size >= 0 for size in sizes) else None
