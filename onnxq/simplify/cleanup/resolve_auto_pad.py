"""State the padding of `auto_pad` in numbers where the sizes are known.

Passes that fold into a Conv have to know what it pads; models from TensorFlow and CNTK leave that to the runtime. The
same goes for `ceil_mode`. When sizes behind a pool become known, onnxruntime's own inference counts windows that do not
exist (`ir/shape_inference/pool_output.py`), and refuses the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.ir.graph import Node
from onnxq.ir.model import Model
from onnxq.ir.pass_manager import register_pass
from onnxq.ir.patch import Patch
from onnxq.ir.shape_inference.padding import auto_pad_of, pads_of
from onnxq.ops.kernels.windows import lay_windows

OPERATORS = ("Conv", "MaxPool", "AveragePool")


@register_pass(order=80, note="replaced auto_pad by pads in {} operator{s}")
def resolve_auto_pad(model: Model) -> Iterator[Patch]:
    """Describe one change for each Conv and pool that pads to keep the size, if that is known."""
    for graph in model.graph.graphs():
        for node in graph.nodes:
            if node.op_type in OPERATORS and not node.domain and len(node.outputs) == 1:
                pads = _pads(node) if auto_pad_of(node).startswith("SAME") or _rounds_up(node) else None
                if pads is not None:
                    yield _stated(node, pads)


def _rounds_up(node: Node) -> bool:
    """Whether a pool rounds the number of its windows up, and what is padded does not count."""
    return bool(node.attribute("ceil_mode", 0)) and not node.attribute("count_include_pad", 0)


def _pads(node: Node) -> list[int] | None:
    read, weight = node.inputs[0], node.inputs[1] if node.op_type == "Conv" else None
    shape = read.shape[2:] if read is not None and read.shape is not None else ()
    stated = weight.shape[2:] if weight is not None and weight.shape is not None else ()
    kernel = [size for size in node.attribute("kernel_shape", stated) if isinstance(size, int)]
    sizes = [size for size in shape if isinstance(size, int)]
    if not sizes or len(sizes) != len(shape) or len(kernel) != len(sizes):
        return None
    strides, dilations = (node.attribute(name, [1] * len(sizes)) for name in ("strides", "dilations"))
    auto_pad = auto_pad_of(node)
    given, ceil, pool = pads_of(node, len(sizes)), bool(node.attribute("ceil_mode", 0)), node.op_type != "Conv"
    found = lay_windows(
        sizes, kernel, strides=strides, dilations=dilations, pads=given, auto_pad=auto_pad, ceil_mode=ceil, pool=pool
    )
    if auto_pad.startswith("SAME"):
        return _loadable([*found.begin, *found.end], kernel, pool=pool)
    if min(found.output) < 1:
        return None
    ends = [
        max(0, (count - 1) * stride + (wide - 1) * step + 1 - size - begin)
        for count, stride, wide, step, size, begin in zip(
            found.output, strides, kernel, dilations, sizes, found.begin, strict=True
        )
    ]
    return _loadable([*found.begin, *ends], kernel, pool=pool)


def _loadable(pads: list[int], kernel: list[int], *, pool: bool) -> list[int] | None:
    """Return pads unless onnxruntime refuses them: those of a pool have to be below its kernel, whatever it dilates."""
    refused = pool and any(pad >= size for pad, size in zip(pads, kernel * 2, strict=True))
    return None if refused else pads


def _stated(node: Node, pads: list[int]) -> Patch:
    patch = Patch(node.graph, node, "the sizes are known")
    made = node.outputs[0]
    assert made is not None
    left_out = ("auto_pad", "ceil_mode")
    attributes = {name: value for name, value in node.attributes().items() if name not in left_out} | {"pads": pads}
    new = patch.node(node.op_type, node.inputs, outputs=[made.name], name=node.name, **attributes)
    patch.nodes[0].name = node.name
    patch.replace(made, new[0])
    return patch
