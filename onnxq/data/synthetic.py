"""Synthetic samples for a model that comes without data, of sizes and numbers that it takes: found by trying.

Numbers at random may mask everything: a row of scores with nothing to attend to gives NaN, which says nothing about a
model. No model states whether 1 stands for masked places or for the others. So masks that leave the first places, and
masks that hide the last, are tried for one input after the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxq.data.npz import Source
from onnxq.data.samples import InputSpec, Sample, Samples
from onnxq.data.text.table_rows import table_rows
from onnxq.data.validation import refuse_unfed
from onnxq.errors import DataError
from onnxq.ir import Model, Value
from onnxq.ir.shape_inference.open_sizes import sizes_by_weights
from onnxq.runtime.session import Session, SessionError, open_session, run_session

__all__ = ["random_samples", "synthetic_samples"]

# Numbers that are not random: 1 up to a place of the last axis and 0 behind, the reverse, or floats from 0 to 1
FIRST, LAST, EVEN = "first", "last", "even"
MOST_TRIED, MOST_FLOATS = 24, 4  # of other numbers, and inputs of floats that get some
MOST_ELEMENTS = 1 << 22  # of what a Softmax makes: of pictures it may not fit into memory with others
BOOL = np.dtype(bool)

# Sizes for open dimensions of random samples: small, and divisible by the 32 that many vision models shrink by
RANDOM_SIZE, RANDOM_CHANNELS, RANDOM_PIXELS = 16, 3, 64
MOST_CHANNELS = 4  # of pictures: a last axis of no more holds them, as TensorFlow lays them out


@dataclass(frozen=True)
class InputFill:
    """Sizes of open dimensions, without first axes.

    Attributes:
        size: Of an axis; channels of images excepted.
        pixels: The same for inputs of rank 4 and 5.
        batched: Whether the first open axis of every input is 1, too: the batch of a state need not be its first axis.
        past: Size of dimensions that are named so, or whose input is, as keys and values of earlier tokens are.
        first: Size of first axes: 1 for a batch, more for rows that another input names by their numbers.

    """

    size: int = RANDOM_SIZE
    pixels: int = RANDOM_PIXELS
    batched: bool = False
    past: int | None = None
    first: int = 1


# Windows of audio and sides of pictures come in powers of two. 160 and 16000 are 10 ms and 1 s of audio at 16 kHz. A
# size of 1 takes the least time; the largest come last, because a model may take minutes before it refuses them
SIZES = (64, 128, 256, 512, 1024, 32, 224, 640, 160, 1, 4096, 16000)
FRAMES = (64, 256)  # sides of a map that has no axis for a batch, as features of sound
FILLS = (
    InputFill(past=0),
    InputFill(past=RANDOM_SIZE),
    InputFill(batched=True),
    InputFill(first=RANDOM_SIZE),
    *(InputFill(size, size, batched) for size in SIZES for batched in (False, True)),
    *(InputFill(size, size, first=size) for size in FRAMES),
)


def random_samples(
    inputs: Sequence[InputSpec],
    count: int,
    seed: int = 0,
    fill: InputFill | None = None,
    numbers: Mapping[str, str] | None = None,
    rows: Mapping[str, int] | None = None,
    known: Mapping[str, int] | None = None,
) -> Samples:
    """Make up samples for a model that comes without data: fit for timing and for checks, not for calibration.

    Floats are standard normal. Integers are 0 or 1 (right for masks, safe as ids), or rows of a table. Booleans are
    drawn evenly. Dynamic dimensions: 1 for the first axis, 3 channels and 64 pixels for rank 4 and 5, 16 otherwise.
    Channels are the second axis, unless the last one is fixed at no more than 4. One symbolic name has one size. A
    name that is a sum, such as `past + 1`, has that of its terms. Sample `i` depends on `seed` and `i` alone.

    Args:
        inputs: What the model wants.
        count: How many.
        seed: Of the random numbers.
        fill: Other sizes for open dimensions.
        numbers: Other numbers for some inputs, by name: FIRST, LAST or EVEN.
        rows: How many rows the table has that an input picks from, by name: it gets any of them.
        known: Sizes of named dimensions.

    Raises:
        DataError: An input's dtype or rank is unknown, or it is not numeric.

    """
    refuse_unfed(inputs)
    shapes, other, tables = _shapes(inputs, fill or InputFill(), known or {}), numbers or {}, rows or {}
    for spec in inputs:
        if spec.numpy_dtype is None or spec.numpy_dtype.kind not in "fiub":
            raise DataError(f"input '{spec.name}' ({spec}) cannot be made up at random", "Give data for the model.")

    def read() -> Iterator[Sample]:
        for index in range(count):
            random = np.random.default_rng([seed, index])
            yield {
                s.name: _random_array(random, s, shapes[s.name], other.get(s.name), tables.get(s.name)) for s in inputs
            }

    samples = Samples([Source("random data", read, count)], inputs, f"random numbers (seed {seed})")
    samples.made_up = True
    return samples


def synthetic_samples(model: Model, inputs: Sequence[InputSpec], count: int) -> Samples:
    """Make up samples of sizes that a model takes, and of numbers that do not make NaN of it.

    Weights tell some sizes. Token ids are any that the model has embeddings for, unless it does not take these.
    Samples of the usual sizes are given if it takes none that is tried. Those of the usual numbers are given if others
    give NaN as well.

    Args:
        model: The model, types inferred.
        inputs: Its inputs.
        count: How many samples.

    Raises:
        DataError: As `random_samples`.

    """
    known = sizes_by_weights(model)
    usual = random_samples(inputs, count, known=known)
    shapes = [_shapes(inputs, fill, known) for fill in (InputFill(), *FILLS)]
    fills = [InputFill(), *(fill for index, fill in enumerate(FILLS, 1) if shapes[index] not in shapes[:index])]
    found = {spec.name: table_rows(model, spec.name) for spec in inputs}
    tables = {name: size for name, size in found.items() if size is not None}
    masked = _may_be_masked(inputs)
    taps = [value for value in _attention(model) if masked]
    try:
        session = open_session(model, taps=taps)
    except SessionError:
        return usual  # the comparison says why
    outputs = [output.name for output in model.graph.outputs]
    for fill, rows in itertools.product(fills, (tables, {}) if tables else ({},)):
        make = partial(random_samples, inputs, count, fill=fill, rows=rows, known=known)
        made = make()
        try:
            run_session(session, outputs, next(iter(made)))
        except SessionError:
            continue
        tried = count if masked else 1
        return _sound_samples(session, [*outputs, *(tap.name for tap in taps)], made, make, tried)
    return usual


def _may_be_masked(inputs: Sequence[InputSpec]) -> bool:
    """Whether one of the inputs may be a mask: a single one of floats is what the model is about."""
    return len(inputs) > 1 or any(spec.numpy_dtype is not None and spec.numpy_dtype.kind != "f" for spec in inputs)


def _attention(model: Model) -> Iterator[Value]:
    """List what Softmax nodes make, where a row without anything to attend to shows even if codes hide it later on."""
    for node in model.graph.nodes:
        made = node.outputs[0] if node.op_type == "Softmax" and not node.domain else None
        if made is None or made.dtype != TensorProto.FLOAT or made.is_output or made.shape is None:
            continue
        if math.prod(size for size in made.shape if isinstance(size, int)) <= MOST_ELEMENTS:
            yield made


def _sound_samples(
    session: Session, names: Sequence[str], usual: Samples, make: Callable[..., Samples], tried: int
) -> Samples:
    """Return samples of which a model makes neither NaN nor infinity, as far as it is tried, or else the usual ones.

    Args:
        session: Of the model.
        names: Of what it makes.
        usual: The samples that are preferred.
        make: Makes the same with other numbers.
        tried: How many samples are looked at.

    """
    if _is_sound(session, names, usual.limit(tried)):
        return usual
    for numbers in itertools.islice(_other_numbers(usual.inputs), MOST_TRIED):
        samples = make(numbers=numbers)
        if _is_sound(session, names, samples.limit(tried)):
            return samples
    return usual


def _is_sound(session: Session, names: Sequence[str], samples: Iterable[Sample]) -> bool:
    try:
        results = (array for sample in samples for array in run_session(session, names, sample))
        return all(np.isfinite(array).all() for array in results if getattr(array, "dtype", BOOL).kind == "f")
    except SessionError:
        return False


def _other_numbers(inputs: Sequence[InputSpec]) -> Iterator[dict[str, str]]:
    """List what else to try: first for single inputs, then for all, then for pairs; those of integers come first."""
    floats = [spec.name for spec in inputs if spec.numpy_dtype is not None and spec.numpy_dtype.kind == "f"]
    flags = [spec.name for spec in inputs if spec.name not in floats]
    for names, kinds in ((flags, (FIRST, LAST)), (floats[:MOST_FLOATS], (FIRST, LAST, EVEN))):
        yield from ({name: kind} for name in names for kind in kinds)
        yield from (dict.fromkeys(names, kind) for kind in kinds if len(names) > 1)
    for pair in itertools.combinations(flags, 2):
        yield from (dict(zip(pair, kinds, strict=True)) for kinds in itertools.product((FIRST, LAST), repeat=2))


def _shapes(inputs: Sequence[InputSpec], fill: InputFill, known: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    sizes = dict(known)
    shapes: dict[str, list[int]] = {}
    for spec in inputs:
        if spec.shape is None:
            raise DataError(f"input '{spec.name}' has no known rank to make up data for", "Give data for the model.")
        shapes[spec.name] = [_size(spec, axis, fill, sizes) for axis in range(len(spec.shape))]
    for spec in inputs:
        for axis, dim in enumerate(spec.shape or ()):
            terms = [term.strip() for term in dim.split("+")] if isinstance(dim, str) else []
            if len(terms) > 1 and all(term in sizes or term.isdigit() for term in terms):
                shapes[spec.name][axis] = sum(int(term) if term.isdigit() else sizes[term] for term in terms)
    return {name: tuple(shape) for name, shape in shapes.items()}


def _size(spec: InputSpec, axis: int, fill: InputFill, sizes: dict[str, int]) -> int:
    size, dim, dims = spec.fixed(axis), spec.shape[axis] if spec.shape else None, spec.shape or ()
    if size is not None:
        return size
    if axis == 0:
        size = fill.first
    elif fill.past is not None and isinstance(dim, str) and _is_earlier(dim, spec.name):
        size = fill.past
    elif fill.batched and all(spec.fixed(earlier) is not None for earlier in range(axis)):
        size = 1
    elif len(dims) in (4, 5):
        last = spec.fixed(len(dims) - 1)
        channels_last = last is not None and last <= MOST_CHANNELS
        size = RANDOM_CHANNELS if axis == 1 and not channels_last else fill.pixels
    else:
        size = fill.size
    return sizes.setdefault(dim, size) if isinstance(dim, str) else size


def _is_earlier(dim: str, name: str) -> bool:
    """Whether a size is that of earlier tokens: exporters name the input so, if not its dimension."""
    return "past" in dim.lower() or "past" in name.lower() or "cache" in name.lower()


def _random_array(
    random: np.random.Generator, spec: InputSpec, shape: tuple[int, ...], numbers: str | None, rows: int | None
) -> np.ndarray:
    dtype = spec.numpy_dtype
    assert dtype is not None  # random_samples refused it
    drawn: np.ndarray
    if dtype.kind == "f" and rows is None:
        drawn = random.standard_normal(shape)
    else:
        most = int(np.iinfo(dtype).max) + 1 if dtype.kind in "iu" else 1 << 24  # the last integer of float32
        drawn = random.integers(0, min(rows or 2, most), shape)
    if numbers == EVEN:
        drawn = random.random(shape)
    elif numbers is not None:
        size = shape[-1] if shape else 1
        is_first = np.arange(size) < random.integers(1, size + 1) if size else np.zeros(0)
        drawn = np.broadcast_to(is_first == (numbers == FIRST), shape) if shape else is_first[0] == (numbers == FIRST)
    return np.asarray(drawn).astype(dtype)
