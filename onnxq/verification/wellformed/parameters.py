"""Scales and zero points: their numbers, types and shapes.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.ir import Node
from onnxq.verification.wellformed.constants import dtype_of, numbers_of, shape_of, type_name
from onnxq.verification.wellformed.defect import Defect, at
from onnxq.verification.wellformed.groups import CodeParameters, is_dequantize, is_quantize, parameters_of

SCALE_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E8M0, TensorProto.INT32)


def check_parameters(node: Node) -> Iterator[Defect]:
    """Find what is wrong with the scales and zero points of one node."""
    for found in parameters_of(node):
        is_pair = is_quantize(node) or is_dequantize(node)
        if found.scale is None and is_pair:
            yield at(node, None, "has no scale")
        yield from _check_scale(found)
        yield from _check_types(found)
        yield from _check_shapes(found)
        if is_pair:
            yield from _check_granularity(found)
        elif found.group.axis is not None:
            yield from _check_channels(found, found.group.axis)


def _check_scale(found: CodeParameters) -> Iterator[Defect]:
    scale, node = found.scale, found.node
    dtype = dtype_of(scale)
    if dtype is not None and dtype not in SCALE_TYPES:
        yield at(node, scale, f"has a scale '{_name(scale)}' of type {type_name(dtype)}, which no scale can have")
        return
    numbers = numbers_of(scale)
    if numbers is None:
        return
    numbers = numbers.astype(np.float32)
    for bad, what in (
        (~np.isfinite(numbers), "is not finite"),
        (numbers == 0, "is zero"),
        (numbers < 0, "is negative"),
    ):
        if bad.any():
            many = f"; so are {int(bad.sum()) - 1} others of {numbers.size}" if bad.sum() > 1 else ""
            place = "".join(f"[{i}]" for i in np.argwhere(bad)[0])
            yield at(node, scale, f"has a scale '{_name(scale)}'{place} that {what}: {numbers[bad][0]:g}{many}")


def _check_types(found: CodeParameters) -> Iterator[Defect]:
    """Compare the type of the zero point with that of the codes."""
    node, zero, zero_type, codes_type = found.node, found.zero_point, dtype_of(found.zero_point), dtype_of(found.codes)
    if is_quantize(node):  # inference takes the type of the output from the zero point: only the attribute can differ
        codes_type = node.attribute("output_dtype", 0) or None
    if zero_type is None:
        return
    if codes_type is not None and zero_type != codes_type:
        yield at(
            node,
            zero,
            f"has a zero point '{_name(zero)}' of type {type_name(zero_type)} for {type_name(codes_type)} codes",
        )
    numbers = numbers_of(zero) if zero_type == TensorProto.INT32 else None
    if numbers is not None and numbers.any():
        yield at(
            node, zero, f"has a zero point '{_name(zero)}' for int32, which has none: it has to be 0", is_error=False
        )


def _check_shapes(found: CodeParameters) -> Iterator[Defect]:
    """Compare the shape of the zero point with that of the scale."""
    scale, zero = shape_of(found.scale), shape_of(found.zero_point)
    if scale is None or zero is None or scale == zero:
        return
    if (_is_single(scale) and _is_single(zero)) or any(not isinstance(d, int) for d in (*scale, *zero)):
        return
    if _is_single(zero) and not (is_quantize(found.node) or is_dequantize(found.node)):
        return  # the integer products take one zero point for all channels
    yield at(
        found.node,
        found.zero_point,
        f"has a zero point '{_name(found.zero_point)}' of shape {list(zero)} for a scale of shape {list(scale)}",
    )


def _check_granularity(found: CodeParameters) -> Iterator[Defect]:
    """Check axis and block size of a QuantizeLinear or DequantizeLinear against the shapes."""
    node, scale = found.node, shape_of(found.scale)
    tensor = node.input(0)
    shape = shape_of(tensor)
    block = node.attribute("block_size", 0)
    axis = node.attribute("axis", 1)
    if scale is None:
        return
    if block:
        yield from _check_blocks(found, shape, scale, axis, block)
    elif len(scale) > 1:
        yield at(node, found.scale, f"has a scale '{_name(found.scale)}' of shape {list(scale)} and no block_size")
    elif not _is_single(scale) and shape is not None:
        if not -len(shape) <= axis < len(shape):
            yield at(node, tensor, f"has axis {axis}, but '{_name(tensor)}' has rank {len(shape)}")
        else:
            yield from _check_channels(found, axis)


def _check_channels(found: CodeParameters, axis: int) -> Iterator[Defect]:
    shape = shape_of(found.codes if not is_quantize(found.node) else found.node.inputs[0])
    for value, role in ((found.scale, "scale"), (found.zero_point, "zero point")):
        given = shape_of(value)
        if (
            shape is None
            or given is None
            or len(given) != 1
            or _is_single(given)
            or not -len(shape) <= axis < len(shape)
        ):
            continue
        channels, count = shape[axis], given[0]
        if isinstance(channels, int) and isinstance(count, int) and channels != count:
            yield at(
                found.node,
                value,
                f"has a {role} '{_name(value)}' of {count} numbers for {channels} channels: "
                f"axis {axis} of the shape {list(shape)}",
            )
            return


def _check_blocks(
    found: CodeParameters,
    shape: tuple[int | str | None, ...] | None,
    scale: tuple[int | str | None, ...],
    axis: int,
    block: int,
) -> Iterator[Defect]:
    node, value = found.node, found.scale
    if block < 0:
        yield at(node, value, f"has a negative block_size {block}")
    elif shape is None:
        return
    elif len(scale) != len(shape):
        yield at(
            node,
            value,
            f"has block_size {block}, so that its scale '{_name(value)}' {list(scale)} needs rank {len(shape)}",
        )
    elif not -len(shape) <= axis < len(shape):
        yield at(node, node.inputs[0], f"has axis {axis}, but '{_name(node.inputs[0])}' has rank {len(shape)}")
    else:
        wanted = list(shape)
        length = wanted[axis]
        wanted[axis] = -(-length // block) if isinstance(length, int) else None
        pairs = zip(wanted, scale, strict=True)
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
            yield at(
                node,
                value,
                f"cuts {list(shape)} into blocks of {block} along axis {axis}, which needs scales of shape {wanted}, "
                f"but '{_name(value)}' has {list(scale)}",
            )


def _is_single(shape: tuple[int | str | None, ...]) -> bool:
    return shape in ((), (1,))


def _name(value: object) -> str:
    return getattr(value, "name", "")
