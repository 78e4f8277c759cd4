"""The samples that a model is going to see: figures of its inputs, and warnings.

Samples stream by once. Kept are sums, a few numbers of each sample, and a few samples to run the first layers on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

import numpy as np

from onnxq.data.conventions import SHORT
from onnxq.data.first_layers import AFFINE
from onnxq.data.input_summary import InputSummaries, InputSummary, short
from onnxq.data.normalization import CODE, normalization_warnings
from onnxq.data.output_checks import output_warnings
from onnxq.data.pictures.noise import noise_warnings
from onnxq.data.pictures.sheet import PictureSheet, Thumbnail
from onnxq.data.pictures.slips import slip_warnings, standardized_warnings
from onnxq.data.samples import Samples, few_samples, input_specs, wrap_samples
from onnxq.data.text.padding import padding_warnings
from onnxq.data.text.table_rows import table_rows
from onnxq.data.validation import Sample
from onnxq.errors import OnnxqError
from onnxq.ir import Model, Node
from onnxq.ir.passes import normalise
from onnxq.ir.schemas import RANDOM
from onnxq.ir.shape_inference.types import infer_types
from onnxq.runtime.fork import in_copy
from onnxq.text import counted
from onnxq.warning import WarningLine

FEW = 16  # samples below which ranges are a matter of luck
FEWEST_SEEN, MOST_SEEN = 500, 1 << 27  # samples, and elements of all: what a look takes of very many
MANY_ROWS = 100  # of a table of words: those of token types and places may all be 0
LEAST_SOUND, QUIETEST = 512, 1.02 / SHORT  # values of a recording, and the most of them after two divisions
FEW_NUMBERS = 3  # of a sample, that may be the same in all
MANY_EQUAL = 0.25  # share of samples that equal another one
MOST_RUN, MOST_ELEMENTS = 12, 1 << 21  # samples that are run, and their elements
LEAST_REPEATED = 4  # samples in which two inputs have to be equal
MOST_PAIRED = 24  # samples that are run as they are and changed
MOST_HELD = 1 << 23  # elements of samples that the first convolutions are run on, if there is a doubt
MOST_COMPARED, SIGNATURE = 512, 256  # samples that are compared with each other, and elements of each
FAR_BEYOND = 30.0  # times the greatest value of all other samples
ENLARGED = 2.0  # times, from which on a picture has lost its detail
FAR_COLUMN = 1000.0  # times the size of a typical column of a table: 8 bits for all see nothing of the others then
NEARLY = 0.01  # of a sample's deviation: how far another one may be from it and still be nearly equal
SCALED = {
    "uint8": "pictures are often divided by 255",
    "uint16": "pictures in 16 bit are often divided by 65535",
    "int16": "sound is often divided by 32768",
    "bool": "True became 1, and False 0",
}
PASSES = ("lift_constants", "drop_initializer_inputs", "inline_functions")


@dataclass(frozen=True)
class Examination:
    """Figures of samples, and warnings about them.

    Attributes:
        inputs: Figures of each input, in the model's order.
        samples: How many samples there are; a batch counts for as many as it has rows.
        warnings: What looks wrong, each with its remedy; empty where all is well.
        pictures: A few pictures as the model sees them; empty if the data are no pictures.

    """

    inputs: tuple[InputSummary, ...] = ()
    samples: int = 0
    warnings: tuple[WarningLine, ...] = ()
    pictures: tuple[Thumbnail, ...] = ()


def examine(
    model: Model,
    samples: Samples | Iterable[Mapping[str, np.ndarray]],
    *,
    calibrating: bool = True,
    judging: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> Examination:
    """Look at samples before anything expensive is done with them.

    Args:
        model: The float model as it is loaded; it is not changed.
        samples: Checked `Samples`, or what `wrap_samples` takes.
        calibrating: Whether ranges are found on the samples, for which a few are not enough.
        judging: Whether a new model is judged on the samples, for which one is not enough.
        progress: Called with the number of samples done and the total (None while unknown).

    Raises:
        DataError: A sample does not fit the model, or there is none.

    """
    with examining(model, samples, calibrating=calibrating, judging=judging, progress=progress, copies=False) as seen:
        return seen()


@contextmanager
def examining(
    model: Model,
    samples: Samples | Iterable[Mapping[str, np.ndarray]],
    *,
    calibrating: bool,
    judging: bool,
    progress: Callable[[int, int | None], None] | None = None,
    copies: bool = True,
) -> Iterator[Callable[[], Examination]]:
    """Read samples, and look at them in a copy of this process while it goes on; yields what to call for the rest.

    Args:
        model: As in `examine`, like all others but the last.
        samples: What is read.
        calibrating: Whether ranges are found on them.
        judging: Whether a new model is judged on them.
        progress: Called while they are read.
        copies: Whether a copy may look at them.

    Raises:
        DataError: A sample does not fit the model, or there is none.

    """
    model = model.copy()
    normalise(model, PASSES)
    infer_types(model)
    given = samples if isinstance(samples, Samples) else wrap_samples(samples, input_specs(model))
    seen = _Seen(InputSummaries(given.inputs), PictureSheet(given.decoders))
    several = few_samples(_counted(seen.watch(given), given.count, progress), MOST_PAIRED, MOST_HELD)

    def looked() -> Examination:
        summaries = seen.summaries.summaries(given.converted)
        if given.made_up:
            return Examination(summaries, seen.count)
        warnings = [
            *unused_options(given),
            *_of_repeats(given, seen),
            *given.warnings,
            *_of_values(summaries),
            *seen.warnings(calibrating=calibrating, judging=judging),
        ]
        if model.residency.quick:
            warnings += _with_model(model, given, seen, several, warnings)
        known = any(warning.code == CODE for warning in warnings)
        warnings += _of_pictures(given, seen.count, known=known)
        return Examination(summaries, seen.count, tuple(warnings), seen.sheet.thumbnails())

    with in_copy(looked, copies=copies and given.shareable and model.residency.quick) as found:
        yield cache(found)


def _with_model(
    model: Model, given: Samples, seen: _Seen, several: list[Sample], known: Sequence[WarningLine]
) -> list[WarningLine]:
    """Return what a model that is quickly run shows of samples, beyond what is known."""
    summaries = seen.summaries.summaries(given.converted)
    held = few_samples(several, MOST_RUN, MOST_HELD)
    few = few_samples(held, MOST_RUN, MOST_ELEMENTS)
    found = [*unscaled_columns(model, seen.sizes, seen.count)]
    found += _of_files(given, summaries, [*known, *found])
    found += _of_ids(model, summaries, few)
    found += _of_random_nodes(model)
    found += noise_warnings(few, summaries)
    slips = [*slip_warnings(few, summaries), *_of_sound(few, summaries)]
    found += slips
    found += padding_warnings(model, few)
    found += _of_repeated_inputs(few)
    if not any(warning.code == CODE for warning in slips):
        found += _of_model(model, (few, held, several), summaries, given.decoders, seen.count)
    return found


def some_of(samples: Samples) -> Samples:
    """Return samples that a look at takes a moment: all, or some spread evenly where all of them hold very much."""
    count = samples.count
    if count is None or count <= FEWEST_SEEN:
        return samples
    elements = sum(array.size for array in next(iter(samples)).values())
    return samples.spread(max(FEWEST_SEEN, min(count, MOST_SEEN // max(elements, 1))))


def _counted(
    samples: Iterable[Sample], total: int | None, progress: Callable[[int, int | None], None] | None
) -> Iterator[Sample]:
    for done, sample in enumerate(samples, 1):
        yield sample
        if progress is not None:
            progress(done, total)


@dataclass
class _Seen:
    """Statistics of samples that stream by."""

    summaries: InputSummaries
    sheet: PictureSheet
    count: int = 0
    constant: int = 0
    empty: int = 0
    first: bytes = b""  # digest of the first sample
    peaks: dict[str, list[tuple[float, list[int]]]] = field(default_factory=dict)  # by input, the two highest, and rows
    counting: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # last row; columns that count
    sizes: dict[str, np.ndarray] = field(default_factory=dict)  # by table, the sums of each column without signs
    signatures: list[bytes] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def watch(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, and note what they are like."""
        for sample in samples:
            self.first = self.first or _digest(sample)
            self.summaries.add(sample)
            self.sheet.add(sample)
            for row in _rows(sample):
                self._note(row)
            yield sample

    def begins_with(self, sample: Sample | None) -> bool:
        """Whether a sample is the first one that was seen."""
        return sample is not None and self.first == _digest(sample)

    def _note(self, sample: Mapping[str, np.ndarray]) -> None:
        self.count += 1
        arrays = [array for array in sample.values() if array.dtype.kind in "fiub" and array.size]
        self.empty += not any(array.size for array in sample.values())
        self._note_peaks(sample)
        self._note_counting(sample)
        self.constant += bool(arrays) and all((array == array.flat[0]).all() for array in arrays)
        if len(self.values) < MOST_COMPARED:
            floats = [array for array in arrays if array.dtype.kind == "f"]
            parts = [array.ravel()[:: -(-array.size // SIGNATURE)].astype(np.float32) for array in floats]
            self.values.append(np.concatenate(parts) if parts else np.zeros(0, np.float32))
            exact = hashlib.sha256(repr([array.shape for array in sample.values()]).encode())
            for array in sample.values():  # codes and words are equal or not: 1 more is another word
                if array.dtype.kind != "f":
                    exact.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
            self.signatures.append(exact.digest())

    def _note_peaks(self, sample: Mapping[str, np.ndarray]) -> None:
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.size:
                peak = float(max(array.max(), -array.min()))
                known = dict(self.peaks.get(name, []))
                known[peak] = [*known.get(peak, []), self.count - 1]
                self.peaks[name] = sorted(known.items(), reverse=True)[:2]

    def _note_counting(self, sample: Mapping[str, np.ndarray]) -> None:
        """Note which columns of a table rise by 1 from row to row."""
        for name, array in sample.items():
            if array.dtype.kind != "f" or array.ndim > 2 or not 2 <= array.size == array.shape[-1]:
                continue
            row = array.reshape(-1)
            if self.sizes.setdefault(name, np.zeros(row.size)).shape == row.shape:
                self.sizes[name] += abs(row)
            last, counts = self.counting.get(name, (row - 1, np.ones(row.shape, bool)))
            if last.shape == row.shape:
                self.counting[name] = (row, counts & (row - last == 1))

    def odd(self) -> Iterator[WarningLine]:
        """Yield which samples have values far beyond those of all others, and which columns number the rows."""
        for name, peaks in self.peaks.items():
            if self.count >= FEW and len(peaks) > 1 and peaks[0][0] > FAR_BEYOND * peaks[1][0] > 0:
                (most, rows), (second, _) = peaks
                only = len(rows) == 1
                which = f"row {rows[0]} of '{name}' reaches" if only else f"{len(rows)} rows of '{name}' reach"
                message = f"{which} {short(most)}, and no other more than {short(second)}"
                look = "Look at it: one wrong sample spoils the ranges of all."
                missing = "Look at them: such a number may stand for a missing value."
                yield WarningLine("odd-sample", message, look if only else missing)
        for name, (_, counts) in self.counting.items():
            if self.count >= FEW and counts.any() and not counts.all():
                message = f"column {int(np.flatnonzero(counts)[0])} of '{name}' rises by 1 from row to row"
                yield WarningLine("index-column", message, "Leave out a column that numbers the rows of a table.")

    def equal(self) -> int:
        """Return how many samples are equal or nearly equal to one before."""
        groups: dict[bytes, list[np.ndarray]] = {}
        for exact, values in zip(self.signatures, self.values, strict=True):
            groups.setdefault(exact, []).append(values)
        return sum(_equal(np.stack(group)) for group in groups.values())

    def warnings(self, *, calibrating: bool, judging: bool) -> Iterator[WarningLine]:
        """Yield what is wrong with the samples, whatever the model."""
        if calibrating and self.count < FEW:
            amount = f"only {counted(self.count, 'sample')}"
            yield WarningLine("few-samples", f"ranges come from {amount}", "Give 32 to 200 typical samples.")
        elif judging and self.count == 1:
            yield WarningLine("few-samples", "accuracy is judged on only 1 sample", "Give 32 to 200 typical samples.")
        yield from self.odd() if calibrating else ()
        compared, same = len(self.values), self.equal()
        if self.empty == self.count and self.count:
            message = f"an axis of the arrays has the size 0, in {_all_of(self.count)}"
            yield WarningLine("empty-samples", message, "Give real samples: there is no value to measure.")
        elif self.constant == self.count and self.count:
            message = f"every value of a sample is the same, in {_all_of(self.count)}"
            yield WarningLine("constant-samples", message, "Give real samples: nothing can be measured from constants.")
        elif compared > 1 and same >= max(MANY_EQUAL * compared, 1) and (same > 1 or compared < FEW):
            share = _all_of(compared) if same == compared - 1 else f"{same} of {counted(compared, 'sample')}"
            rest = "are equal or nearly so" if same == compared - 1 else "are equal to another one or nearly so"
            yield WarningLine("equal-samples", f"{share} {rest}", "Give samples that differ as those in use do.")


def _digest(sample: Sample) -> bytes:
    """Return a digest of the values of a sample."""
    found = hashlib.sha256()
    for array in sample.values():
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return found.digest()


def _of_repeats(given: Samples, seen: _Seen) -> Iterator[WarningLine]:
    """Say that a function gives other samples each time: it is called for each pass over them."""
    if not given.shareable and not seen.begins_with(next(iter(given), None)):
        message = f"{given.description} gives other samples each time"
        remedy = "Draw random numbers from a seed: a second run would give another model."
        yield WarningLine("other-samples", message, remedy)


def _all_of(count: int) -> str:
    return "the only sample" if count == 1 else f"all {count} samples"


def _rows(sample: Sample) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the rows of a sample that is a batch: all its arrays have a first axis of one size above 1."""
    sizes = {array.shape[0] if array.ndim > 1 else None for array in sample.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None or size < 2:
        yield sample
    else:
        yield from ({name: array[index] for name, array in sample.items()} for index in range(size))


def _equal(values: np.ndarray) -> int:
    """Return how many rows are nearly equal to one before."""
    if not values.shape[1]:
        return len(values) - 1
    wide = values.astype(np.float64)
    wide = wide[:, ~far_columns(abs(wide).sum(axis=0))]  # a time in seconds would hide all other columns
    centred = wide - np.median(wide, axis=0)  # one huge row would move the mean, and cancel all digits of the others
    spreads = wide.var(axis=1)
    squares = (centred**2).mean(axis=1)
    products = centred @ centred.T / wide.shape[1]
    distances = squares[:, None] + squares[None, :] - 2 * products
    near = distances <= NEARLY**2 * np.maximum(spreads[:, None], 1e-300) + 1e-12 * squares[:, None]
    return int(np.tril(near, -1).any(axis=1).sum())


def far_columns(sizes: np.ndarray) -> np.ndarray:
    """Tell for each column whether its values are far beyond those of a typical one."""
    some = sizes[sizes > 0]
    return np.asarray(sizes > FAR_COLUMN * np.median(some) if some.size else np.zeros(sizes.shape, bool))


def unscaled_columns(model: Model, sizes: Mapping[str, np.ndarray], count: int) -> Iterator[WarningLine]:
    """Yield which columns of tables are far beyond the others, where a product with weights reads all of them."""
    for value in model.graph.inputs:
        found = np.flatnonzero(far_columns(sizes[value.name])) if value.name in sizes else np.zeros(0)
        readers = [reader.op_type for reader in value.consumers() if not reader.domain]
        if not found.size or count < FEW or not set(readers).intersection(AFFINE):
            continue
        means = sizes[value.name] / count
        more = f" and {found.size - 1} more" if found.size > 1 else ""
        message = f"column {found[0]}{more} of '{value.name}' has values around {short(means[found[0]])}, and a typical"
        message += f" column around {short(float(np.median(means[means > 0])))}"
        remedy = "Scale the columns as in training: the others hardly count next to one so large."
        yield WarningLine("unscaled-column", message, remedy)


def unused_options(given: Samples) -> Iterator[WarningLine]:
    """Yield a warning for each setting that says nothing about the samples."""
    for said in given.ignored:
        yield WarningLine("ignored-option", said, "Leave it out, or give the data that it is about.")


def _of_pictures(given: Samples, count: int, *, known: bool) -> Iterator[WarningLine]:
    """Say what was assumed about pictures and sound, and what was enlarged; `known`: their values are wrong."""
    large = [scale for scale in given.enlarged.values() if scale >= ENLARGED]
    if large and len(large) >= MANY_EQUAL * count:
        enlarged = min(len(large), count)  # one more may have been read
        most = f"{max(large):.2g}" if max(large) < 10 else f"{max(large):.0f}"
        size = f"up to {most} times {'its' if count == 1 else 'their'} size"
        message = f"{enlarged} of {counted(count, 'picture')} had to be enlarged for the model, {size}"
        yield WarningLine("enlarged-pictures", message, "Give pictures as large as those in use.")
    for one in given.preparations:
        pictures = one.input in given.decoders
        if one.assumed and not (known and pictures):
            keys = "normalize=unit, signed, imagenet or bytes" if pictures else "rate=16000"
            yield WarningLine("assumed-preprocessing", one.assumed, f"Say what holds: --preprocess {keys}.")


def _of_files(given: Samples, summaries: Iterable[InputSummary], found: Sequence[WarningLine]) -> Iterator[WarningLine]:
    """Say that pictures or recordings hold one value alone, where states or other inputs vary."""
    names = {one.input for one in given.preparations if one.input in given.decoders or "rate" in one.settings}
    if any(warning.code == "constant-samples" for warning in found):
        return
    for summary in summaries:
        values = summary.values
        if summary.name in names and values is not None and values.least == values.greatest:
            message = f"every value of '{summary.name}' is {short(values.least)}, in {_all_of(given.count or 0)}"
            yield WarningLine("constant-samples", message, "Give real samples: nothing can be measured from constants.")


def _marks_content(summary: InputSummary) -> bool:
    """Whether an input holds 1 where there is content, as attention masks of texts do.

    Masks of pictures, and those that PyTorch names after padding, mostly hold 1 where there is none.
    """
    name, (kind, _, shape) = summary.name.lower(), summary.type.partition("[")
    of_text = "attention" in name or kind.startswith(("int", "uint"))
    return "mask" in name and "pad" not in name and of_text and shape.count(",") <= 1  # [samples, tokens]


def _of_values(summaries: Iterable[InputSummary]) -> Iterator[WarningLine]:
    for summary in summaries:
        values = summary.values
        if _marks_content(summary) and values is not None and values.least == values.greatest == 0:
            message = f"every value of '{summary.name}' is 0, which hides all of a sample from the model"
            yield WarningLine("empty-mask", message, "Give 1 where a sample has content, and 0 where it is padded.")
        whole_mask = summary.name.lower().endswith("mask") and summary.type.startswith("int")
        if whole_mask and values is not None and not 0 <= values.least <= values.greatest <= 1:
            span = f"{short(values.least)} … {short(values.greatest)}"
            message = f"'{summary.name}' holds {span}, and a mask of whole numbers holds 0 and 1"
            yield WarningLine("mask-values", message, "Check that arrays of two inputs are not exchanged.")
        if summary.given is not None and np.dtype(summary.given).kind in "iub" and summary.type.startswith("float"):
            yield WarningLine(
                "dtype-converted",
                f"the samples of '{summary.name}' are {summary.given} and were converted to {summary.type}",
                f"Convert and scale them as in training: {SCALED.get(summary.given, SCALED['uint8'])}.",
            )


def _of_sound(samples: Sequence[Sample], summaries: Iterable[InputSummary]) -> Iterator[WarningLine]:
    """Say that long rows of floats hold no more than the quietest sound of 16 bit: they were divided twice."""
    for summary in summaries:
        values = summary.values
        if values is None or summary.channel_axis is not None or values.least == values.greatest:
            continue
        long = all(sample[summary.name].size >= LEAST_SOUND for sample in samples)
        if long and summary.type.startswith("float") and max(-values.least, values.greatest) <= QUIETEST:
            span = f"{short(values.least)} … {short(values.greatest)}"
            message = f"the values of '{summary.name}' ({span}) are those of sound that was divided by 32768 twice"
            yield WarningLine(CODE, message, "Divide by 32768 once: sound is from -1 to 1.")


def _of_repeated_inputs(samples: Sequence[Sample]) -> Iterator[WarningLine]:
    """Say that two inputs hold the same values in all samples, as where one array was given twice."""
    names = list(samples[0]) if len(samples) >= LEAST_REPEATED else []
    for first, second in combinations(names, 2):
        pairs = [(sample[first], sample[second]) for sample in samples]
        varied = any((one != one.flat[0]).any() for one, _ in pairs if one.dtype.kind in "fiub" and one.size)
        if varied and all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs):
            message = f"'{first}' and '{second}' hold the same values in all {len(samples)} samples"
            yield WarningLine("repeated-input", message, "Check that no array was given for two inputs.")


def _is_sequence(samples: Sequence[Sample], name: str) -> bool:
    """Whether an input holds several numbers a sample; one may tell the language or the speaker, which stays."""
    return all(sample[name].size > FEW_NUMBERS for sample in samples)


def _of_ids(model: Model, summaries: Iterable[InputSummary], samples: Sequence[Sample]) -> Iterator[WarningLine]:
    """Say that numbers of rows of a table are negative: Gather takes them for rows counted from the end."""
    for summary in summaries:
        values = summary.values
        if values is not None and values.least == values.greatest and summary.type.startswith("int"):
            rows = table_rows(model, summary.name) if _is_sequence(samples, summary.name) else None
            if rows is not None and rows >= MANY_ROWS:
                message = f"every number in '{summary.name}' is {short(values.least)}, in all samples"
                yield WarningLine("constant-ids", message, "Give real samples: their token ids differ.")
        if values is not None and values.least < 0 and summary.type.startswith("int"):
            rows = table_rows(model, summary.name)
            if rows is not None:
                message = (
                    f"'{summary.name}' holds {short(values.least)}, and rows of its table count from 0 to {rows - 1}"
                )
                remedy = "Fill up with the padding token's id; -100 and -1 mark what a loss leaves out."
                yield WarningLine("negative-ids", message, remedy)


def _of_random_nodes(model: Model) -> Iterator[WarningLine]:
    """Say that outputs are others at every run: what float and quantized model differ by is chance, too."""
    found = [node for node in model.graph.walk() if _draws(node)]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        message = (
            f"{found[0].op_type} node '{found[0].display_name}'{more} draws random numbers: outputs differ at every run"
        )
        remedy = "Export the model for inference, or with random numbers as an input: the dB say nothing here."
        yield WarningLine("random-outputs", message, remedy)


def _draws(node: Node) -> bool:
    if node.domain:
        return False
    if node.op_type != "Dropout" or len(node.inputs) < 3 or node.inputs[2] is None:
        return node.op_type in RANDOM and node.attribute("seed", None) is None
    training = node.inputs[2].constant
    return training is not None and bool(training.numpy().any())


def _of_model(
    model: Model,
    samples: tuple[list[Sample], list[Sample], list[Sample]],
    summaries: Sequence[InputSummary],
    files: Collection[str],
    count: int,
) -> list[WarningLine]:
    """Say what the model makes of a few samples; nothing of a model that does not run, which others say.

    The first layers know what fits, and outputs only what is surer: pictures of mean 0 come between them.

    Args:
        model: The float model.
        samples: A few, more for the first layers, and several that are compared in pairs.
        summaries: Figures of the inputs.
        files: Inputs whose values settings make of picture files.
        count: How many samples there are in all.

    """
    few, held, several = samples
    by_name = {summary.name: summary for summary in summaries}
    try:
        found = normalization_warnings(model, few, by_name, files, held)
    except OnnxqError:
        found = []
    found = found or list(standardized_warnings(few, summaries, count))
    return found or list(output_warnings(model, few, by_name, files, several))
