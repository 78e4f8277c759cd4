"""Samples for calibration and verification: one class for all sources, checked while they stream.

`Samples` starts from the beginning with every `iter()` and holds one sample at a time. The forms of data and how arrays
are cut into samples are described in `onnxq.data.npz`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from onnxq.data.advice import (
    SAMPLES,
    named_type,
    one_sample,
    refuse_file_of_code,
    refuse_single_array,
    refuse_values,
)
from onnxq.data.labels import Labels, first_labels, label_names, read_labels
from onnxq.data.npz import Source, cut_arrays, read_npy, read_npz
from onnxq.data.opening import open_folder, open_other
from onnxq.data.readers import read_iterable
from onnxq.data.reading import NOTHING_KNOWN, PLAIN, ModelFacts, Preparation, Reading
from onnxq.data.recurrent.feed import fed_source, float_model, make_feed
from onnxq.data.recurrent.pairs import state_pairs
from onnxq.data.remote import is_remote, local_copy
from onnxq.data.user_function import CALLABLE, import_named
from onnxq.data.validation import InputSpec, Sample, UnknownName, conform, input_specs
from onnxq.data.whole_files import whole_where_rows_fail
from onnxq.errors import DataError
from onnxq.missing import missing_data
from onnxq.progress import mention
from onnxq.text import as_list, counted
from onnxq.warning import WarningLine

__all__ = [
    "InputSpec",
    "Sample",
    "Samples",
    "few_samples",
    "input_specs",
    "list_sources",
    "open_samples",
    "spread_samples",
    "wrap_samples",
]

PYTHON = "Python"  # what samples are from that a caller gives
MANY = 10_000  # samples of a function after which the user is told: some never end
Given = TypeVar("Given", bound=Mapping[str, np.ndarray])


class Samples(Iterable[Sample]):
    """A stream of checked samples that can be read any number of times.

    Iterating gives `{input name: array}` with exactly the model's dtypes. It raises DataError for data that do not fit,
    with the input, the file and the sample, or if there is no sample at all.

    Attributes:
        inputs: What the model wants.
        count: Number of samples; None while unknown.
        description: One line for the report: how many samples, from where.
        made_up: Whether the numbers are random ones of ours.
        numbers: Where the samples stand in the data, for messages; None where they are the first ones.
        converted: By input, the dtype that the data have where they are converted; known once a sample was read.

    """

    made_up = False
    numbers: Sequence[int] | None = None

    def __init__(self, sources: Sequence[Source], inputs: Sequence[InputSpec], origin: str, most: int | None = None):
        self.inputs = tuple(inputs)
        self._sources = tuple(sources)
        self._origin = origin
        self._first, self._most = 0, most
        self._places: frozenset[int] | None = None  # of the samples in use; None where all between both are
        self.converted: dict[str, np.dtype[Any]] = {}
        self._seen: int | None = None  # how many the last pass over all of them gave

    def limit(self, n: int) -> Samples:
        """Return the first `n` samples.

        Raises:
            DataError: `n` is below 1.

        """
        if n < 1:
            raise DataError(f"{n} samples are asked for", "Ask for at least 1.")
        if self._places is not None:
            return self._at(sorted(self._places)[:n], None if self.numbers is None else self.numbers[:n])
        stop = self._first + n
        limited = Samples(
            self._sources, self.inputs, self._origin, stop if self._most is None else min(stop, self._most)
        )
        limited._first, limited.made_up = self._first, self.made_up
        limited.numbers = None if self.numbers is None else self.numbers[:n]
        return limited

    def _at(self, places: Iterable[int], numbers: Sequence[int] | None) -> Samples:
        """Return the samples at some places in the data, which messages number so."""
        some = Samples(self._sources, self.inputs, self._origin, self._most)
        some._places, some.numbers, some.made_up = frozenset(places), numbers, self.made_up
        return some

    def between(self, start: int, stop: int) -> Samples:
        """Return the samples from one place in the data up to another, which is not among them."""
        part = Samples(self._sources, self.inputs, self._origin, stop if self._most is None else min(stop, self._most))
        part._first, part.numbers, part.made_up = start, range(start, stop), self.made_up
        return part

    def parts(self, n: int) -> list[Samples] | None:
        """Return the samples in `n` parts of neighbours, of about equal size; None while their number is unknown.

        The numbers of samples stay as they are; see `numbers`.
        """
        count = self.count
        if count is None:
            return None
        places = range(self._first, self._first + count) if self._places is None else sorted(self._places)
        numbers = range(count) if self.numbers is None else self.numbers
        made = []
        for at in range(n):
            taken = slice(at * count // n, (at + 1) * count // n)
            made.append(self._at(places[taken], numbers[taken]))
        return made

    def spread(self, n: int) -> Samples:
        """Return `n` samples, evenly from the first to the last: data are often in some order.

        They are the first ones where nothing says how many there are. Files between them are not read.

        Raises:
            DataError: `n` is below 1.

        """
        count = self.count
        if n < 1 or count is None or count <= n:
            return self.limit(n)
        own = range(self._first, self._first + count) if self._places is None else sorted(self._places)
        places = [own[index * count // n] for index in range(n)]
        return self._at(places, places)

    @property
    def count(self) -> int | None:
        """Number of samples; None while unknown."""
        if self._places is not None:
            return len(self._places)
        total = self._total()
        stop = total if total is None or self._most is None else min(total, self._most)
        return None if stop is None else max(stop - self._first, 0)

    @property
    def shareable(self) -> bool:
        """Whether a copy of this process may read them at the same time; see `Source`."""
        return all(source.shareable for source in self._sources)

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """The preprocessing of files that hold no arrays, for each input; equal ones are given once."""
        return tuple({str(one): one for source in self._sources for one in source.preparations}.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts of the data that were left out, in sentences."""
        return tuple(note for source in self._sources for note in source.notes)

    @property
    def enlarged(self) -> dict[Path, float]:
        """How many times larger pictures were made, by file; known once all samples were read."""
        return {file: scale for source in self._sources for file, scale in source.enlarged.items()}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The settings of the user that say nothing about the data, in sentences."""
        return tuple(dict.fromkeys(said for source in self._sources for said in source.ignored))

    @property
    def warnings(self) -> tuple[WarningLine, ...]:
        """Return what looks wrong about the files themselves."""
        return tuple(dict.fromkeys(warning for source in self._sources for warning in source.warnings))

    @property
    def decoders(self) -> dict[str, Callable[[np.ndarray, int], np.ndarray]]:
        """For each input that takes pictures, how its values become colours again; see `Source`."""
        return {name: decode for source in self._sources for name, decode in source.decoders.items()}

    @property
    def description(self) -> str:
        """One line for the report: how many samples, from where."""
        return self.describe()

    def describe(self, ran: int | None = None) -> str:
        """Return the same line after a run, which tells how many a function gives.

        Args:
            ran: How many have been read; None while unknown.

        """
        total, count = self._total(), self.count
        if total is None and ran is not None:
            amount = counted(ran, "sample")
        elif total is None:
            amount = "samples" if self._most is None else f"up to {counted(self._most, 'sample')}"
        else:
            which = "the first " if self._places is None else ""
            amount = counted(total, "sample") if count == total else f"{which}{count} of {total} samples"
        dropped = sum(source.dropped for source in self._sources)
        note = f" ({counted(dropped, 'row')} left over by the model's fixed batch)" if dropped else ""
        return f"{amount} from {self._origin}{note}"

    def __iter__(self) -> Iterator[Sample]:
        seen, last = 0, self._most if self._places is None else max(self._places) + 1
        ordered = None if self._places is None else sorted(self._places)
        for source in self._sources:
            if source.count is not None and not self._has_any(ordered, seen, seen + source.count):
                seen += source.count
                continue
            for index, raw in enumerate(source.read()):
                if seen == last:
                    return self._passed(seen)
                if seen == MANY and source.count is None and last is None and self._seen is None:
                    mention(f"{self._origin} gave {MANY:,} samples and goes on: --samples N reads the first N")
                if not self._has_any(ordered, seen, seen + 1):
                    seen += 1
                    continue
                where = source.label if source.count == 1 else f"{source.label}, sample {index}"
                where = f"{SAMPLES}[{index}]" if source.label == SAMPLES else where
                sample = conform(raw, self.inputs, where)
                for name, array in sample.items():
                    dtype = np.asarray(raw[name]).dtype
                    dtype = dtype.newbyteorder("=")  # the order of bytes is no other type
                    if dtype != array.dtype and not array.dtype.hasobject:  # words are objects, whatever they were
                        self.converted[name] = dtype
                yield sample
                seen += 1
        return self._passed(seen)

    def _has_any(self, ordered: Sequence[int] | None, start: int, stop: int) -> bool:
        """Tell whether samples in use stand between two places in the data; `ordered` has those of the samples."""
        if ordered is None:
            return stop > self._first
        return bisect_left(ordered, start) < bisect_left(ordered, stop)

    def _passed(self, seen: int) -> None:
        """Refuse data that end elsewhere than before: what was chosen by their places would be chosen by others."""
        if self._seen is not None and seen != self._seen:
            raise DataError(
                f"{self._origin} gave {counted(self._seen, 'sample')} before, and {seen} now",
                "They are read several times: what gives them has to give the same ones each time.",
            )
        if not seen:
            raise _no_samples(self._origin)
        self._seen = seen

    def labels(self) -> Labels:
        """Return what the data say about the samples: the arrays whose names start with `_`.

        Returns:
            For each name a list in the order of the data: the whole array of a file as it stands there, and from a
            Python function the array of each sample. Where an array has a row for each sample (for each row of the
            model's batches), only the rows of the samples in use are given.

        Raises:
            DataError: A file cannot be read, or only some of its samples are used and an array in it has another
                number of rows than there are samples. Or the samples in use are not the first ones.

        """
        if self._first or self._places is not None:
            raise DataError("labels are read for the first samples, and these are others", "Take them by limit(n).")
        return read_labels(self._sources, self.inputs, self._most)

    def label_names(self) -> tuple[tuple[str, ...], str]:
        """Return the names of the labels, and why there are none where the data have classes that do not fit."""
        try:
            return label_names(self._sources, self.inputs), ""
        except DataError as error:
            return (), f"{error.message}. {error.hint}"

    def first_rows(self) -> int | None:
        """Return how many rows `first_labels` should have: those of a file, or of a sample; None while unknown."""
        first = self._sources[0] if self._sources else None
        if first is None or first.count is None:
            return None
        return first.rows if first.read_labels is None else first.count * first.rows

    def first_labels(self) -> Labels:
        """Return the labels of the first file or sample, for a look at their names and shapes.

        Raises:
            DataError: It cannot be read.

        """
        return first_labels(self._sources, self.inputs)

    def _total(self) -> int | None:
        counts = [source.count for source in self._sources]
        return None if None in counts else sum(c for c in counts if c is not None)


def open_samples(
    sources: str | Path | Sequence[str | Path],
    inputs: Sequence[InputSpec],
    reading: Reading = PLAIN,
    facts: ModelFacts = NOTHING_KNOWN,
) -> Samples:
    """Open the data that a user names; several sources are read one after another.

    Args:
        sources: One or several, each an `.npz` or `.npy` file, a folder of them, an ONNX `test_data_set_*` folder or
            one that contains such folders, or `package.module:function`, a callable that gives an iterable of
            `{input name: array}` or such an iterable itself (the current folder is searched for the module). Or
            pictures: a folder of them, a text file of their paths, or the data file of ultralytics. Or a file of
            sentences, or recordings. Or a URL of any of these, which fsspec fetches.
        inputs: What the model wants, from `input_specs`.
        reading: How files that hold no arrays become samples.
        facts: What is known of the model.

    Raises:
        DataError: A source is missing, unreadable, empty, or its headers show that it does not fit the model. Values
            are checked when they are read.

    Returns:
        The samples, which can be read any number of times.

    Examples:
        >>> import onnxq
        >>> onnxq.open_samples("calibration.npz", onnxq.input_specs("model.onnx")).count
        16

    """
    opened: list[Source] = []
    sources = list_sources(sources)
    pairs = state_pairs(as_list(reading.state), inputs, facts.outputs)
    given = [spec for spec in inputs if spec.name not in pairs]
    model = float_model(pairs, facts) if pairs else None
    for source in sources:
        for one in _open_unfed(str(source), given, reading, facts, pairs):
            opened.append(fed_source(one, make_feed(inputs, pairs, facts, model=model)) if pairs else one)
    opened = _with_ignored(whole_where_rows_fail(opened, inputs, facts), reading)
    samples = Samples(opened, inputs, ", ".join(_short(str(source)) for source in sources))
    if samples.count == 0:
        raise _no_samples(", ".join(str(source) for source in sources) or "an empty list of sources")
    return samples


def _open_unfed(
    source: str, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts, fed: Mapping[str, str]
) -> list[Source]:
    """Open a source that holds no values for states that are fed."""
    try:
        return _open(source, inputs, reading, facts)
    except UnknownName as error:
        if error.name in fed:
            message = f"{_short(source)} holds '{error.name}', which --state feeds from step to step"
            raise DataError(message, "Leave one of them out.") from error
        raise


def list_sources(data: str | Path | Iterable[str | Path] | None) -> tuple[str | Path, ...]:
    """Take one source, several or none for a list of them.

    Raises:
        DataError: An array, a sample or something else that names no file is given.

    """
    if data is None:
        return ()
    if isinstance(data, np.ndarray | Mapping) or not isinstance(data, Iterable | PathLike):
        refuse_values([data])
    found = as_list(data)
    refuse_values(found)
    return found


def wrap_samples(
    source: Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]] | Mapping[str, Any] | np.ndarray,
    inputs: Sequence[InputSpec],
    description: str = PYTHON,
) -> Samples:
    """Check samples that Python code gives: a list, any object that can be iterated again, or a function.

    Each item is one sample of exactly the inputs' ranks. An array for each input, or for the only one, holds all
    samples: it is cut as in an `.npz`.

    Raises:
        DataError: `source` is an iterator that can be read only once, or no iterable at all.

    """
    if isinstance(source, Samples):
        _refuse_other_model(source, inputs)
        return source
    said = SAMPLES if description == PYTHON else description
    if isinstance(source, np.ndarray):
        refuse_single_array(said, inputs)
        source = {inputs[0].name: source}
    if isinstance(source, Mapping):
        return Samples([cut_arrays(source, inputs, said)], inputs, description)
    if callable(source):
        return Samples([read_iterable(source, said, inputs)], inputs, description)
    if not isinstance(source, Iterable) or isinstance(source, str | bytes):
        raise DataError(
            f"{said} is {named_type(source)}, not samples",
            "Give files as data." if isinstance(source, str | Path) else f"Give a list of {one_sample(inputs)}.",
        )
    if iter(source) is source:
        raise DataError(
            f"{said} is an iterator that can be read only once",
            "Samples are read several times: give a list, or the function that makes the iterator.",
        )
    read = read_iterable(lambda: source, said, inputs)
    count = len(source) if isinstance(source, Sequence) else None
    return Samples(
        [Source(read.label, read.read, count, shareable=isinstance(source, list | tuple))], inputs, description
    )


def _refuse_other_model(samples: Samples, inputs: Sequence[InputSpec]) -> None:
    """Refuse samples that were opened for a model with other inputs."""
    theirs, ours = ([spec.name for spec in specs] for specs in (samples.inputs, inputs))
    if sorted(theirs) != sorted(ours):
        raise DataError(
            f"the samples are for a model with the inputs {', '.join(theirs)}, and this one has {', '.join(ours)}",
            "Open them for this model: onnxq.open_samples(data, onnxq.input_specs(model)).",
        )


def few_samples(samples: Iterable[Given], limit: int, most_elements: float = math.inf) -> list[Given]:
    """Take a few samples to hold side by side; see `spread_samples`."""
    return list(spread_samples(samples, limit, most_elements).values())


def spread_samples(
    samples: Iterable[Given], limit: int, most_elements: float = math.inf, least: int = 1
) -> dict[int, Given]:
    """Take samples evenly from the first to the last, by their place: data are often in some order.

    All are read once, and no more than twice as many are held on the way.

    Args:
        samples: Where to take them from.
        limit: How many at most.
        most_elements: How many elements their arrays may have together.
        least: How many to take all the same if there are so many.

    """
    limit = max(limit, least, 1)
    taken: list[tuple[int, Given]] = []
    step, elements = 1, 0  # every so many-th sample is taken, more than are needed, and then every second of them
    for index, sample in enumerate(samples):
        if index % step:
            continue
        taken.append((index, sample))
        elements += _elements(sample)
        while len(taken) >= 2 * max(least, 1) and (len(taken) >= 2 * limit or elements > 2 * most_elements):
            taken, step = taken[::2], 2 * step
            elements = sum(_elements(one) for _, one in taken)
    room = int(len(taken) * min(1.0, most_elements / max(elements, 1)))
    count = min(len(taken), limit, max(room, least, 1))
    return dict(taken[index * len(taken) // count] for index in range(count))


def _elements(sample: Mapping[str, np.ndarray]) -> int:
    return sum(np.size(array) for array in sample.values())


def _open(source: str, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> list[Source]:
    path = local_copy(source)
    try:
        if path.is_dir():
            return open_folder(path, inputs, reading, facts)
        present = path.exists()
    except OSError as error:
        raise DataError(f"{source} cannot be read ({error.strerror})", "Check its name and permissions.") from error
    if present and not path.is_file():  # opening a pipe would wait for its writer
        raise DataError(f"{source} is no regular file", "Save the data to a file first: they are read several times.")
    if present and path.stat().st_size == 0:
        raise DataError(f"{source} is empty", "Save the data again.")
    if present and path.suffix.lower() == ".npz":
        return [read_npz(path, inputs)]
    if present and path.suffix.lower() == ".npy":
        refuse_single_array(source, inputs)
        return [read_npy({inputs[0].name: path}, inputs, path.name)]
    if present:
        return open_other(path, inputs, reading, facts)
    if source == "-":
        raise DataError("data are not read from stdin", "Save them to a file first: they are read several times.")
    refuse_file_of_code(source)
    if CALLABLE.fullmatch(source):
        given = import_named(source)
        return list(wrap_samples(given, inputs, source)._sources)
    raise missing_data(source)


def _with_ignored(opened: list[Source], reading: Reading) -> list[Source]:
    """Note at the first source which settings no source has used."""
    told = [one for source in opened for one in source.preparations if "state" not in one.settings]
    texts = any("tokenizer" in one.settings for one in told)
    unused: list[tuple[str, object, bool, str]] = [
        ("preprocess", reading.preprocess, bool(told), "no array is preprocessed")
    ]
    for name, given in (
        ("tokenizer", reading.tokenizer),
        ("text-key", reading.text_key),
        ("max-length", reading.max_length),
    ):
        unused.append((name, given, texts, "the data hold no sentences"))
    said = tuple(f"'{name}' has no effect: {why}" for name, given, used, why in unused if given and not used)
    return [replace(opened[0], ignored=said), *opened[1:]] if said and opened else opened


def _no_samples(origin: str) -> DataError:
    if origin == PYTHON:
        return DataError(f"{SAMPLES} holds none", "Give at least one; 32 to 200 make good ranges.")
    return DataError(f"there are no samples in {origin}", "Give at least one; 32 to 200 make good ranges.")


def _short(source: str) -> str:
    return source if CALLABLE.fullmatch(source) or is_remote(source) else Path(source).name or source
