"""Find arrays whose sizes fit an input in another order of axes, such as channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

Dimensions = Sequence[int | None]
CHANNELS = (1, 3, 4)  # of pictures: grey, colour, colour with opacity
MOST_AXES = 6  # of which all orders are tried: 720


def order_of_axes(shape: Sequence[int], wanted: Dimensions, *, keep_first: bool) -> tuple[int, ...] | None:
    """Return the order for `transpose` that makes an array fit; None where none does, or sizes that are known are few.

    One axis moved, the others in their order, goes before all else: channels that are last and should be first.

    Args:
        shape: Of the array, of as many axes as are wanted.
        wanted: The sizes that the input has; None for one that may be any.
        keep_first: Whether the first axis counts samples and has to stay.

    """
    rank = len(shape)
    if rank != len(wanted) or not 2 <= rank <= MOST_AXES:
        return None
    fitting = [order for order in permutations(range(rank)) if _fits([shape[axis] for axis in order], wanted)]
    fitting = [order for order in fitting if not keep_first or order[0] == 0]
    return min(fitting, key=_cost, default=None)


def _fits(shape: Sequence[int], wanted: Dimensions) -> bool:
    return all(size is None or size == given for given, size in zip(shape, wanted, strict=True))


def _cost(order: tuple[int, ...]) -> tuple[int, ...]:
    """Rank orders: the fewest axes to move, the first where it is, channels from or to the end rather than others."""
    last = len(order) - 1
    rising = list(order) == sorted(order)
    one_moved = any(_rises([axis for axis in order if axis != moved]) for moved in order)
    from_end = order.index(last) < last and _rises([axis for axis in order if axis != last])
    to_end = order[last] < last and _rises(order[:last])
    return 0 if rising else 1 if one_moved else 2, int(order[0] != 0), int(not (from_end or to_end)), *order


def _rises(axes: Sequence[int]) -> bool:
    return list(axes) == sorted(axes)


def layout_hint(shape: Sequence[int], wanted: Dimensions, *, behind: int = 0, rows: int | None = None) -> str:
    """Return the sentence that says how to transpose an array; empty where that would not help.

    Args:
        shape: Of one sample.
        wanted: What the input has.
        behind: How many axes the array has in front of a sample's: 1 for a stack.
        rows: How many rows the array has where its first axis counts samples; None where it does not.

    """
    order = order_of_axes(shape, wanted, keep_first=rows is not None)
    if order is None and rows is not None:  # samples may be columns
        order = order_of_axes((rows, *shape[1:]), (None, *wanted[1:]), keep_first=False)
    if order is not None and list(order) != sorted(order):
        axes = [*range(behind), *(axis + behind for axis in order)]
        return f"The sizes fit in another order of axes{_names(order, wanted)}: array.transpose({_numbers(axes)})."
    if (grey := _channel_axis(shape, wanted, 1)) is not None:
        return f"Pictures are grey, and the model takes colours: numpy.repeat(array, 3, axis={grey + behind})."
    if (colour := _channel_axis(shape, wanted, 3, 1)) is not None:
        return f"Pictures have colours, and the model takes grey: array.mean(axis={colour + behind}, keepdims=True)."
    if (clear := _channel_axis(shape, wanted, 4)) is not None:
        cut = ", ".join([":"] * (clear + behind) + [":3"])
        return f"Pictures have four channels, the last one perhaps their opacity: array[{cut}]."
    missing = _missing_axis(shape, wanted, behind) if len(shape) == len(wanted) - 1 else ""
    return missing or _batched(shape, wanted, behind) or _reshaped(shape, wanted, behind) or _resized(shape, wanted)


def _channel_axis(shape: Sequence[int], wanted: Dimensions, given: int, takes: int = 3) -> int | None:
    """Return which axis of four has so many channels in place of others; None where none has, or more differs."""
    for axis in (1, 3):
        if len(shape) == len(wanted) == 4 and (shape[axis], wanted[axis]) == (given, takes):
            return axis if _fits([*shape[:axis], takes, *shape[axis + 1 :]], wanted) else None
    return None


def _batched(shape: Sequence[int], wanted: Dimensions, behind: int) -> str:
    """Return the sentence for a stack of batches of another size than the model fixes."""
    if not behind or not wanted or not shape or wanted[0] in (None, shape[0]):
        return ""
    if not _fits([wanted[0], *shape[1:]], wanted):
        return ""
    rows = f"array.reshape({_numbers([-1, *shape[1:]])})"
    return f"The model takes batches of {wanted[0]}, and is given batches of {shape[0]}: {rows} gives the rows alone."


def _resized(shape: Sequence[int], wanted: Dimensions) -> str:
    """Return the sentence for pictures that have other sides than a model fixes, and nothing else."""
    if len(shape) != 4 or len(wanted) != 4:
        return ""
    for channels, sides in ((1, (2, 3)), (3, (1, 2))):
        height, width = (wanted[side] for side in sides)
        other = (height, width) != (shape[sides[0]], shape[sides[1]])
        if height and width and other and wanted[channels] == shape[channels] in CHANNELS:
            return f"Pictures are {shape[sides[0]]} × {shape[sides[1]]}: resize them to {height} × {width}, as in use."
    return ""


def _reshaped(shape: Sequence[int], wanted: Dimensions, behind: int) -> str:
    """Return the sentence for rows that were flattened, and for axes of size 1 that are too many or too few."""
    inner = wanted[1:]
    if behind or not wanted or len(shape) == len(wanted) or any(size is None for size in inner):
        return ""
    sizes = [size for size in inner if size is not None]
    flat = len(shape) == 2 and shape[1] == math.prod(sizes)
    kept = [size for size in shape if size != 1]
    real = [size for size in sizes if size != 1]
    same = kept == real or kept[1:] == real
    if not (flat or same) or (wanted[0] is not None and math.prod(shape) % max(math.prod(sizes) * wanted[0], 1)):
        return ""
    return f"The numbers fit in another shape: array.reshape({_numbers([-1, *sizes])})."


def _missing_axis(shape: Sequence[int], wanted: Dimensions, behind: int) -> str:
    """Return the sentence for an array that would fit with one axis of size 1 more."""
    for axis, size in enumerate(wanted):
        if size in (None, 1) and _fits([*shape[:axis], 1, *shape[axis:]], wanted):
            return f"An axis of size 1 is missing: numpy.expand_dims(array, {axis + behind})."
    inner = order_of_axes(shape, wanted[1:], keep_first=False) if wanted[0] in (None, 1) else None
    if inner is None or behind:
        return ""
    return f"The batch axis is missing, and the others are in another order: array.transpose({_numbers(inner)})[None]."


def _numbers(axes: Sequence[int]) -> str:
    return ", ".join(str(axis) for axis in axes)


def _names(order: tuple[int, ...], wanted: Dimensions) -> str:
    """Name layouts that people know, where an axis is as long as channels of pictures are."""
    axis = -1 if order == (0, 2, 3, 1) else -3
    if len(wanted) < 3 or wanted[axis] not in CHANNELS:
        return ""
    known = {(0, 3, 1, 2): ("NHWC", "NCHW"), (0, 2, 3, 1): ("NCHW", "NHWC"), (2, 0, 1): ("HWC", "CHW")}
    found = known.get(order)
    return f" ({found[0]} was given for {found[1]})" if found else ""
