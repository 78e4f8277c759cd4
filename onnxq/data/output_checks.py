"""Warnings about samples by a model's outputs: they hardly differ, or the model is sure of other values only.

A classifier whose samples are normalised otherwise than in training is sure of nothing and gives few classes. If it is
far surer of the same samples by another convention, and gives more classes then, that convention is likely right.

Tests: `tests/data/test_output_checks.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from onnxq.data.conventions import OtherValues, other_values
from onnxq.data.first_layers import replaced, varied
from onnxq.data.input_summary import InputSummary
from onnxq.data.normalization import CODE, remedy
from onnxq.data.pictures.certainty import certainty_warnings, only_pictures
from onnxq.data.text.expected_tokens import token_warnings
from onnxq.data.validation import Sample
from onnxq.errors import OnnxqError
from onnxq.ir import Model
from onnxq.runtime.session import InMemory, Session, SessionError, open_session, run_session
from onnxq.warning import WarningLine

MULTIPLES = (2, 4, 8, 16, 32, 64)  # that sizes are padded to, to see whether a model runs then
HARDLY = 2e-5  # of an output's mean square: variance between samples, where inputs vary more than `VARIED`
VARIED = 1e-2
FIRST, CLEARLY = 3, 50  # samples that are enough where an output's variance is so many times `HARDLY`
LEAST_CLASSES, LEAST_SAMPLES = 10, 6
UNSURE, SURE, MUCH_SURER = 0.25, 0.45, 2.5  # mean probability of the class that is chosen, and how it rises
ROUNDING = 1e-6  # of a mean probability
FEW_CLASSES, MORE_CLASSES = 0.75, 1.2  # classes chosen by the number of samples, and how they become more
UNLIKE = "Look at the values: indices beyond a table, or sizes that do not go together."
OF_OTHERS = "The ids are those of another model: take its own tokenizer, or the classes that it was trained on."
ONE_CLASS, ALL_CLASSES = "one-class", "Give samples of all classes; if these are, check how they are normalised."
LEAST_ALIKE, SURE_OF_ONE = 10, 0.6  # samples of which each has one class, and its mean probability
SCORES = re.compile("logit|score|class|pred", re.IGNORECASE)  # in the name of an output
SURELY = 0.95  # probability of a class
ENOUGH_ELEMENTS = 1 << 16  # of an array, evenly taken, to tell how much it differs between samples


def output_warnings(
    model: Model,
    samples: Sequence[Sample],
    summaries: Mapping[str, InputSummary],
    files: Collection[str] = (),
    held: Sequence[Sample] = (),
) -> Iterator[WarningLine]:
    """Yield what the outputs say; nothing of a model that does not run, which others say.

    Args:
        model: The float model.
        samples: A few samples, in memory.
        summaries: By input, the figures of all samples.
        files: Inputs whose values settings make of picture files.
        held: More samples, for a doubt that takes several.

    """
    try:
        session = open_session(InMemory(model))
    except (OnnxqError, SessionError):
        return
    found = list(_of_outputs(model, session, samples, summaries, files))
    pictures = only_pictures(held, summaries)
    if pictures is not None and all(one.code == ONE_CLASS for one in found):  # pictures upside down are of few classes
        with suppress(SessionError):  # sizes that do not go together, if they are exchanged
            found = list(certainty_warnings(session, held, pictures)) or found
    yield from found


def _of_outputs(
    model: Model,
    session: Session,
    samples: Sequence[Sample],
    summaries: Mapping[str, InputSummary],
    files: Collection[str],
) -> Iterator[WarningLine]:
    """Yield what the outputs of the samples as they are say."""
    try:
        columns = _outputs(session, samples[:FIRST])
        names = [value.name for value in model.graph.outputs]
        if _differ_clearly(samples, columns) and _one_class(names, columns) is None:
            return
        rest = _outputs(session, samples[FIRST:])
        columns = [first + others for first, others in zip(columns, rest, strict=True)] if rest else columns
    except SessionError as error:
        unlike = OF_OTHERS if "of a table whose last row" in str(error) else UNLIKE
        remedy = _multiples(session, samples) or unlike
        yield WarningLine("not-run", f"onnxruntime cannot run the model on these samples: {error}", remedy)
        return
    yield from token_warnings(model, samples, columns)
    try:
        unsure = [name for name in summaries if varied(samples, name)]
        one = summaries[unsure[0]] if len(unsure) == 1 else None
        if one is not None and (found := _surer(session, samples, columns, one, one.name in files)) is not None:
            yield found
        elif _vary(samples) and all(_is_zero(column) for column in columns):
            yield WarningLine(
                "equal-outputs",
                f"every value of the outputs is 0, in all {len(samples)} samples",
                "Check the samples and the model: figures of zeros say nothing.",
            )
        elif _hardly_differ(samples, columns):
            message = f"the outputs hardly differ between {len(samples)} samples that do"
            remedy = "Check how the samples are normalised: the model does not see what is in them."
            if all(_of_one_class(column) for column in columns):
                message = f"the model is sure of one class for all {len(samples)} samples"
                remedy = ALL_CLASSES
            yield WarningLine("equal-outputs", message, remedy)
        elif len(samples) >= LEAST_ALIKE and _vary(samples) and (chosen := _one_class(names, columns)) is not None:
            place, classes = chosen
            message = f"the model gives class {place} of 0 to {classes - 1} for each of {len(samples)} samples"
            yield WarningLine(ONE_CLASS, message, ALL_CLASSES)
    except (OnnxqError, SessionError):
        return


def _multiples(session: Session, samples: Sequence[Sample]) -> str:
    """Say of which number the sizes have to be multiples, if the first sample that fails runs with such ones."""
    failing = next((sample for sample in samples if not _runs(session, sample)), None)
    for multiple in MULTIPLES if failing is not None else ():
        assert failing is not None
        longer = {name: _padded(array, multiple) for name, array in failing.items()}
        name = next((name for name, array in longer.items() if array.shape != failing[name].shape), None)
        if name is not None and _runs(session, longer):
            before, after = list(failing[name].shape), list(longer[name].shape)
            return (
                f"The model runs where sizes are multiples of {multiple}: '{name}' as {after} in place of {before}. "
                "Cut or pad the samples."
            )
    return ""


def _padded(array: np.ndarray, multiple: int) -> np.ndarray:
    """Repeat the last values of each axis behind the batch, until its size is a multiple; sizes of 1 stay."""
    more = [(0, -size % multiple if axis and size > 1 else 0) for axis, size in enumerate(array.shape)]
    return np.pad(array, more, mode="edge") if array.size and array.ndim else array


def _runs(session: Session, sample: Sample) -> bool:
    try:
        run_session(session, None, sample)
    except SessionError:
        return False
    return True


def _outputs(session: Session, samples: Sequence[Sample]) -> list[list[np.ndarray]]:
    """Run all samples, and give a list for each output."""
    return _columns([run_session(session, None, sample) for sample in samples])


def _columns(runs: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    return [list(column) for column in zip(*runs, strict=True)]


def _differ_clearly(samples: Sequence[Sample], columns: Sequence[list[np.ndarray]]) -> bool:
    """Tell by outputs of the first samples whether there is nothing to say of all: they differ, and give no classes.

    Not of integers, of which one may lie beyond a table in any sample, and not of several sizes.
    """
    shapes = {tuple((name, array.shape) for name, array in sample.items()) for sample in samples}
    floats = all(array.dtype.kind == "f" for sample in samples for array in sample.values())
    if len(shapes) > 1 or not floats:
        return False
    real = [column for column in columns if isinstance(column[0], np.ndarray) and column[0].dtype.kind == "f"]
    differ = any(_variation(column) > CLEARLY * HARDLY for column in real)
    return differ and all(_answers(column) is None for column in columns)


def _vary(samples: Sequence[Sample]) -> bool:
    floats = [name for name, array in samples[0].items() if array.dtype.kind == "f"]
    return len(samples) > 1 and any(_variation([sample[name] for sample in samples]) > VARIED for name in floats)


def _is_zero(column: Sequence[np.ndarray]) -> bool:
    """Whether an output of numbers is 0 everywhere; one without elements is not."""
    floats = (isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size > 0 for array in column)
    return all(floats) and not any(array.any() for array in column)


def _hardly_differ(samples: Sequence[Sample], columns: Sequence[list[np.ndarray]]) -> bool:
    if not _vary(samples):
        return False
    real = [column for column in columns if isinstance(column[0], np.ndarray) and column[0].dtype.kind == "f"]
    return len(real) == len(columns) and bool(real) and all(_variation(column) < HARDLY for column in real)


def _of_one_class(column: Sequence[np.ndarray]) -> bool:
    """Whether an output holds probabilities, nearly 1 for one class in all samples."""
    rows = [array.ravel() for array in column]
    return all(_are_probabilities(row) and row.max() >= SURELY for row in rows)


def _one_class(names: Sequence[str], columns: Sequence[list[np.ndarray]]) -> tuple[int, int] | None:
    """Return the class that the only output gives for all samples, and how many there are; None where not one class.

    Scores count by the name of the output alone: those of an embedding may have their greatest at one place, too.
    """
    rows = [np.squeeze(array) for array in columns[0] if isinstance(array, np.ndarray) and array.dtype.kind == "f"]
    if len(columns) > 1 or len(rows) < len(columns[0]) or {row.shape for row in rows} != {(rows[0].size,)}:
        return None
    if rows[0].size < LEAST_CLASSES or len({int(row.argmax()) for row in rows}) > 1:
        return None
    if all(_are_probabilities(row) for row in rows):
        chosen = [row.max() for row in rows]
    elif SCORES.search(names[0]) and all(np.isfinite(row).all() for row in rows):
        chosen = [1 / np.exp(row - row.max(), dtype=np.float64).sum() for row in rows]
    else:
        return None
    return (int(rows[0].argmax()), rows[0].size) if np.mean(chosen) >= SURE_OF_ONE else None


def _variation(arrays: Sequence[np.ndarray]) -> float:
    """Return the variance between arrays as a share of their mean square; 1 where their shapes differ.

    It is NaN where nothing but zeros is there.
    """
    if len({array.shape for array in arrays}) > 1 or not arrays[0].size:
        return 1.0
    step = arrays[0].size // ENOUGH_ELEMENTS | 1  # odd, so that no axis of an even size gives the same places only
    wide = np.stack([array.ravel()[::step] for array in arrays]).astype(np.float64)
    square = float((wide**2).mean())
    if not np.isfinite(square):
        return 1.0
    return float(((wide - wide.mean(axis=0)) ** 2).mean()) / square if square else math.nan


def _surer(
    session: Session, samples: Sequence[Sample], columns: Sequence[list[np.ndarray]], summary: InputSummary, files: bool
) -> WarningLine | None:
    """Say that a classifier is unsure of the samples, and by which convention it is not."""
    given = [answers for column in columns if (answers := _answers(column)) is not None]
    if len(given) != 1 or len(samples) < LEAST_SAMPLES:
        return None
    certainty, classes = given[0]
    if certainty > UNSURE or classes > FEW_CLASSES:
        return None
    fitting: list[tuple[float, OtherValues]] = []
    least = max(SURE, MUCH_SURER * certainty)
    for other in other_values(summary):
        tried = _outputs_if_sure(session, replaced(samples, summary.name, other.change), least)
        answers = next((found for column in tried if (found := _answers(column)) is not None), None)
        if answers is None or answers[0] < least or answers[1] < MORE_CLASSES * classes:
            continue
        fitting.append((answers[0], other))
    if not fitting:
        return None
    message = f"the model is unsure of every sample ({100 * certainty:.0f} % for the class that it chooses)"
    then = f"with other values of '{summary.name}' it is sure ({100 * fitting[0][0]:.0f} %)"
    return WarningLine(CODE, f"{message}; {then}", remedy([other for _, other in fitting[:2]], files=files))


def _outputs_if_sure(session: Session, samples: Sequence[Sample], least: float) -> list[list[np.ndarray]]:
    """Run all samples as `_outputs` does; nothing where their mean probability cannot reach `least` any more."""
    runs: list[Sequence[np.ndarray]] = []
    columns: list[list[np.ndarray]] = []
    for done, sample in enumerate(samples, 1):
        runs.append(run_session(session, None, sample))
        columns = _columns(runs)
        found = [answers[0] for column in columns if (answers := _answers(column)) is not None]
        most = max(found, default=0.0) * done + len(samples) - done
        if not found or most < (least - ROUNDING) * len(samples):
            return []
    return columns


def _answers(column: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """Return the mean probability of the class that is chosen, and the classes chosen by the number of samples.

    None where an output does not hold the probabilities of classes.
    """
    tensors = [array for array in column if isinstance(array, np.ndarray)]  # an output may be a sequence of them
    rows = [array.ravel() for array in tensors if array.dtype.kind == "f"]
    if len(rows) != len(column) or len({row.size for row in rows}) > 1 or rows[0].size < LEAST_CLASSES:
        return None
    if not all(_are_probabilities(row) for row in rows):
        return None
    stacked = np.stack(rows).astype(np.float64)
    return float(stacked.max(axis=1).mean()), len(set(stacked.argmax(axis=1).tolist())) / len(rows)


def _are_probabilities(row: np.ndarray) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(row.min() >= 0 and abs(row.sum(dtype=np.float64) - 1) <= 0.02)  # neither holds of NaN
