"""Samples made up for a model that comes without data, of sizes that it takes: found by trying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxq.errors import DataError
from onnxq.quant.sample_arrays import Source
from onnxq.quant.samples import InputSpec, Sample, Samples
from onnxq.quant.session import ModelSource, SessionError, open_session, run_session

__all__ = ["random_samples", "runnable_samples"]

# Sizes for open dimensions of random samples: small, and divisible by the 32 that many vision models shrink by
RANDOM_SIZE, RANDOM_CHANNELS, RANDOM_PIXELS = 16, 3, 64


@dataclass(frozen=True)
class Fill:
    """What open dimensions are taken for, all but the first axis, which is 1.

    Attributes:
        size: Of an axis; channels of images excepted.
        pixels: The same for inputs of rank 4 and 5.
        batched: Whether the first open axis of every input is 1, too: the batch of a state need not be its first axis.
        past: Size of dimensions that are named so, or whose input is, as keys and values of earlier tokens are.

    """

    size: int = RANDOM_SIZE
    pixels: int = RANDOM_PIXELS
    batched: bool = False
    past: int | None = None


# Windows of audio and sides of pictures come in powers of two; 160 and 16000 are 10 ms and 1 s of audio at 16 kHz.
# What takes 1 only takes the least time; the largest come last, because a model may take minutes before it refuses them
SIZES = (64, 128, 256, 512, 1024, 32, 224, 640, 160, 1, 4096, 16000)
FILLS = (
    Fill(past=0),
    Fill(past=RANDOM_SIZE),
    Fill(batched=True),
    *(Fill(size, size, batched) for size in SIZES for batched in (False, True)),
)


def random_samples(inputs: Sequence[InputSpec], count: int, seed: int = 0, fill: Fill | None = None) -> Samples:
    """Make up samples for a model that comes without data: fit for timing and for checks, not for calibration.

    Floats are standard normal, integers 0 or 1 (right for masks, safe as ids), booleans are drawn evenly. Dynamic
    dimensions: 1 for the first axis, 3 channels and 64 pixels for rank 4 and 5, 16 otherwise; one symbolic name has one
    size, and a name that is a sum, such as `past + 1`, that of its terms. Sample `i` depends on `seed` and `i` alone.

    Args:
        inputs: What the model wants.
        count: How many.
        seed: Of the random numbers.
        fill: Other sizes for open dimensions.

    Raises:
        DataError: An input's dtype or rank is unknown, or it is not numeric.

    """
    shapes = _shapes(inputs, fill or Fill())
    for spec in inputs:
        if spec.numpy_dtype is None or spec.numpy_dtype.kind not in "fiub":
            raise DataError(f"input '{spec.name}' ({spec}) cannot be made up at random", "Give data for the model.")

    def read() -> Iterator[Sample]:
        for index in range(count):
            random = np.random.default_rng([seed, index])
            yield {spec.name: _random_array(random, spec, shapes[spec.name]) for spec in inputs}

    samples = Samples([Source("random data", read, count)], inputs, f"random numbers (seed {seed})")
    samples.made_up = True
    return samples


def runnable_samples(model: ModelSource, inputs: Sequence[InputSpec], count: int) -> Samples:
    """Make up samples of sizes that a model takes; those of the usual sizes where it takes none that is tried.

    Raises:
        DataError: As `random_samples`.

    """
    usual = random_samples(inputs, count)
    shapes = [_shapes(inputs, fill) for fill in (Fill(), *FILLS)]
    fills = [fill for index, fill in enumerate(FILLS, 1) if shapes[index] not in shapes[:index]]
    if not fills:
        return usual
    try:
        session = open_session(model)
    except SessionError:
        return usual  # the comparison says why
    for samples in (usual, *(random_samples(inputs, count, fill=fill) for fill in fills)):
        try:
            run_session(session, None, next(iter(samples)))
        except SessionError:
            continue
        return samples
    return usual


def _shapes(inputs: Sequence[InputSpec], fill: Fill) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, int] = {}
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


def _size(spec: InputSpec, axis: int, fill: Fill, sizes: dict[str, int]) -> int:
    size, dim, dims = spec.fixed(axis), spec.shape[axis] if spec.shape else None, spec.shape or ()
    if size is not None:
        return size
    if axis == 0:
        size = 1
    elif fill.past is not None and isinstance(dim, str) and _is_earlier(dim, spec.name):
        size = fill.past
    elif fill.batched and all(spec.fixed(earlier) is not None for earlier in range(axis)):
        size = 1
    elif len(dims) in (4, 5):
        size = RANDOM_CHANNELS if axis == 1 else fill.pixels
    else:
        size = fill.size
    return sizes.setdefault(dim, size) if isinstance(dim, str) else size


def _is_earlier(dim: str, name: str) -> bool:
    """Whether a size is that of earlier tokens: exporters name the input so, if not its dimension."""
    return "past" in dim.lower() or "past" in name.lower() or "cache" in name.lower()


def _random_array(random: np.random.Generator, spec: InputSpec, shape: tuple[int, ...]) -> np.ndarray:
    dtype = spec.numpy_dtype
    assert dtype is not None  # random_samples refused it
    drawn = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
    return np.asarray(drawn).astype(dtype)
