"""Feed recurrent states: each sample gets the states that the float model computed in the step before.

The model runs with sums in float64, as calibration does, so that samples are the same on every processor.

Tests: `tests/data/test_recurrent_states.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxq.data.npz import Source
from onnxq.data.reading import ModelFacts, Preparation
from onnxq.data.validation import InputSpec, Sample, conform
from onnxq.errors import DataError, ModelError
from onnxq.evaluator import wide_evaluator
from onnxq.ir import Model
from onnxq.runtime.session import SessionError, open_session, run_session

MOST_KEPT = 64 << 20  # bytes of states that are remembered from one pass to the next


class FloatModel:
    """Gives outputs of a float model, which is made ready at the first run.

    Args:
        model: The model; it must not change as long as this is in use.
        names: Of the outputs.

    """

    def __init__(self, model: Model, names: Sequence[str]) -> None:
        self._model, self._names = model, list(names)
        self._run: Callable[[Sample], list[Any]] | None = None

    def run(self, sample: Sample) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Raises:
            DataError: The model fails on the sample.

        """
        try:
            if self._run is None:
                self._run = self._made_ready()
            return dict(zip(self._names, self._run(sample), strict=True))
        except (SessionError, ModelError) as error:
            raise DataError(
                f"{self._model.name} does not run on a step: {error}", "Check that the samples fit the model."
            ) from error

    def _made_ready(self) -> Callable[[Sample], list[Any]]:
        evaluator = wide_evaluator(self._model, self._names)
        if evaluator is not None:
            return lambda sample: list(evaluator.run(sample, self._names).values())
        session = open_session(self._model, optimize="basic", reuse_shapes=False)
        return lambda sample: run_session(session, self._names, sample)


@dataclass
class Feed:
    """The states of a model, and how they go on.

    Attributes:
        inputs: All inputs of the model.
        pairs: By state, the output that gives its next value.
        start: By state, its value at the first step.
        model: Runs a step.
        kept: What earlier passes gave, in the order of the steps.

    """

    inputs: tuple[InputSpec, ...]
    pairs: Mapping[str, str]
    start: Mapping[str, np.ndarray]
    model: FloatModel
    kept: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    _bytes: int = 0

    def run(self, sequences: Iterable[Iterable[Mapping[str, Any]]], label: str) -> Iterator[Mapping[str, Any]]:
        """Yield the samples of sequences; at the start of each one, states are what they are at the beginning.

        Raises:
            DataError: A sample does not fit the model, which then cannot be run, or a state changes its shape.

        """
        place = 0
        for steps in sequences:
            state, last = self.start, None
            for raw in steps:
                if last is not None:
                    state = self._next(place, last, label)
                    place += 1
                twice = next((name for name in raw if name in self.pairs), None)
                if twice is not None:
                    raise DataError(
                        f"{label} holds '{twice}', which --state feeds from step to step", "Leave one of them out."
                    )
                last = {**raw, **state}
                yield last

    def _next(self, place: int, sample: Mapping[str, Any], label: str) -> Mapping[str, np.ndarray]:
        """Return the states behind a step; steps are the same in each pass, and so are their states."""
        if place < len(self.kept):
            return self.kept[place]
        outputs = self.model.run(conform(sample, self.inputs, label))
        state = {name: outputs[output] for name, output in self.pairs.items()}
        if place == len(self.kept) and self._bytes < MOST_KEPT:
            self.kept.append(state)
            self._bytes += sum(array.nbytes for array in state.values())
        return state


def make_feed(
    inputs: Sequence[InputSpec],
    pairs: Mapping[str, str],
    facts: ModelFacts,
    sizes: Mapping[str, Sequence[int]] | None = None,
    model: FloatModel | None = None,
) -> Feed:
    """Prepare the states of a model: zeros at the beginning.

    Args:
        inputs: All inputs of the model.
        pairs: By state, the output that gives its next value.
        facts: Of the model.
        sizes: By state, its shape at the beginning; by default that of the model, with 1 for a batch that is open.
        model: From `float_model`, where several feeds share it.

    Raises:
        DataError: The model is not at hand, or the size of a state is not known.

    """
    specs = {spec.name: spec for spec in inputs}
    start = {name: _zeros(specs[name], (sizes or {}).get(name)) for name in pairs}
    return Feed(tuple(inputs), dict(pairs), start, model or float_model(pairs, facts))


def float_model(pairs: Mapping[str, str], facts: ModelFacts) -> FloatModel:
    """Return what runs the steps of a model, on a copy of it.

    Raises:
        DataError: The model is not at hand.

    """
    if facts.model is None:
        raise DataError("states are fed by running the model, which is not at hand", "Give arrays for all inputs.")
    return FloatModel(facts.model.copy(), list(dict.fromkeys(pairs.values())))


def _zeros(spec: InputSpec, shape: Sequence[int] | None) -> np.ndarray:
    if shape is None:
        if spec.shape is None:
            raise DataError(f"the shape of the state '{spec.name}' is not known", "Give arrays for all inputs.")
        sizes = [spec.fixed(axis) for axis in range(len(spec.shape))]
        if sizes.count(None) > 1:
            hint = "Export the model with fixed sizes, or give arrays for all inputs."
            raise DataError(f"several sizes of the state '{spec.name}' ({spec}) are open", hint)
        shape = [1 if size is None else size for size in sizes]
    return np.zeros(tuple(shape), spec.numpy_dtype or np.dtype(np.float32))


def feed_preparations(feed: Feed, origin: str) -> tuple[Preparation, ...]:
    """Say where the states come from."""
    return tuple(
        Preparation(name, f"zeros, then '{output}' of the step before", origin, {"state": output})
        for name, output in feed.pairs.items()
    )


def fed_source(source: Source, feed: Feed) -> Source:
    """Return a source of arrays as one sequence, with the states of each step."""
    read = source.read
    labels = source.read_labels
    return replace(
        source,
        read=lambda: feed.run([read()], source.label),
        read_labels=labels,
        preparations=(*source.preparations, *feed_preparations(feed, "--state")),
        shareable=False,
    )
