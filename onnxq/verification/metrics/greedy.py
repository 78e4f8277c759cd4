"""Greedy decoding: the percentage of tokens that a model chooses as the float model does, along the latter's own text.

The float model continues the first tokens of some samples, always with the token that it likes best. Both models then
read these texts once: a causal model gives for each place what it would have given there.

Tests: `tests/verification/test_greedy.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from onnxq.data.labels import Labels
from onnxq.data.validation import InputSpec, Sample
from onnxq.errors import DataError
from onnxq.runtime.workers import run_in_order
from onnxq.verification.metrics.named_metric import Arrays, MetricRun, find_logits

NAME = "greedy"
TEXTS, PROMPT, CONTINUED = 8, 32, 64
BEGINS = "_greedy_begins"  # the first place of each text whose choice counts
ONES, PLACES = ("mask",), ("position", "pos_")
COMPANIONS = (*ONES, *PLACES, "type", "segment")

RunModel = Callable[[Sample], Mapping[str, np.ndarray]]


def check_ids(labels: Labels, inputs: Sequence[InputSpec]) -> None:
    """Refuse a model that reads no token ids, or several.

    Raises:
        DataError: It does.

    """
    ids_input(inputs)


def ids_input(inputs: Sequence[InputSpec]) -> InputSpec:
    """Return the input that holds token ids.

    Raises:
        DataError: There is none, or it is not clear which.

    """
    found = [
        one
        for one in inputs
        if one.numpy_dtype is not None
        and one.numpy_dtype.kind in "iu"
        and (one.shape is None or len(one.shape) == 2)
        and not any(word in one.name.lower() for word in COMPANIONS)
    ]
    if len(found) != 1:
        names = ", ".join(f"'{one.name}'" for one in found) or "no input"
        raise DataError(f"{NAME} needs one input of token ids, and {names} could be it", "Use --metric agreement.")
    return found[0]


def continue_texts(
    samples: Iterable[Sample], inputs: Sequence[InputSpec], run: RunModel
) -> tuple[list[Sample], Labels]:
    """Let a model continue the first tokens of samples.

    Args:
        samples: Where the first tokens come from; the first ones are taken.
        inputs: Of the model.
        run: Runs the float model and gives its outputs by name; for several texts at a time.

    Returns:
        The texts, and as labels the first place of each whose choice counts.

    Raises:
        DataError: The model gives no logits, or a text has fewer than two tokens.

    """
    spec = ids_input(inputs)
    length = spec.shape[1] if spec.shape is not None and isinstance(spec.shape[1], int) else None

    def continued(sample: Sample) -> tuple[Sample, np.ndarray]:
        given = sample[spec.name]
        prompt = min(PROMPT, given.shape[1] if length is None else length // 2)
        if prompt < 1:
            raise DataError(f"{NAME}: a text has no tokens to go on from", "Give texts of two tokens at least.")
        size = prompt + CONTINUED - 1 if length is None else min(prompt + CONTINUED - 1, length)
        text = _continued(sample, spec.name, prompt, size, run, fixed=length is not None)
        return text, np.asarray([prompt - 1, size])

    made = list(run_in_order(continued, islice(samples, TEXTS)))
    texts, begins = [text for text, _ in made], [begin for _, begin in made]
    return texts, {BEGINS: begins}


def _continued(sample: Sample, name: str, prompt: int, size: int, run: RunModel, *, fixed: bool) -> Sample:
    """Return a sample whose text goes on with what the model likes best."""
    ids = sample[name]
    text = np.zeros((len(ids), ids.shape[1] if fixed else size), ids.dtype)
    text[:, :prompt] = ids[:, :prompt]
    for end in range(prompt, size):
        feeds = _grown(sample, name, text if fixed else text[:, :end])
        text[:, end] = find_logits(NAME, run(feeds))[:, end - 1].argmax(axis=-1)
    return _grown(sample, name, text)


def _grown(sample: Sample, name: str, text: np.ndarray) -> Sample:
    """Return a sample with another text, and with masks, places and types of its length."""
    before, after = sample[name].shape[1], text.shape[1]
    made = {**sample, name: text}
    for other, array in sample.items():
        whole = array.dtype.kind in "iub" and array.ndim == 2 and array.shape[1] >= before
        if other == name or not whole or not any(word in other.lower() for word in COMPANIONS):
            continue
        past, low = array.shape[1] - before, other.lower()
        own = np.ones((len(array), after), array.dtype)
        if any(word in low for word in PLACES):
            own = own * np.arange(after, dtype=array.dtype) + array[:, past : past + 1]
        elif not any(word in low for word in ONES):
            own = own * array[:, past : past + 1]
        made[other] = np.concatenate([array[:, :past], own], axis=1).astype(array.dtype)
    return made


class Greedy(MetricRun):
    """Keeps the choices of a model along the texts.

    Args:
        labels: From `continue_texts`.

    """

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._begins = [np.asarray(one) for one in labels.get(BEGINS, [])]
        self.chosen: list[np.ndarray] = []

    def add(self, inputs: Arrays, outputs: Arrays) -> None:
        """Keep the choices of one text."""
        begin, end = self._begins[len(self.chosen)]
        self.chosen.append(find_logits(NAME, outputs)[:, begin:end].argmax(axis=-1))

    def score(self, reference: MetricRun) -> float:
        """Return the percentage of equal choices."""
        assert isinstance(reference, Greedy)
        alike = [(ours == theirs).ravel() for ours, theirs in zip(self.chosen, reference.chosen, strict=True)]
        return 100 * float(np.concatenate(alike).mean())
