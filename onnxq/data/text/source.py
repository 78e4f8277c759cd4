"""Samples from sentences: tokens, masks, types and positions, and for decoders the steps behind a text.

Tests: `tests/data/test_text_source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxq.data.constants import text_settings
from onnxq.data.npz import Source
from onnxq.data.pictures.configs import class_names
from onnxq.data.reading import ModelFacts, Preparation, Reading
from onnxq.data.recurrent.feed import Feed, make_feed
from onnxq.data.recurrent.pairs import find_pairs
from onnxq.data.text.doubts import refuse_foreign_tokens, text_warnings
from onnxq.data.text.place_limit import most_places
from onnxq.data.text.roles import TextInputs, text_inputs
from onnxq.data.text.sentences import Sentences
from onnxq.data.text.text_bytes import byte_tokenizer
from onnxq.data.text.tokenizer import LONGEST, EncodedText, Padding, TextTokenizer, find_tokenizer
from onnxq.data.text.windows import is_decoder, joined_windows
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import counted

STEPS = 4  # tokens of a text that a decoder reads one by one, behind all others at once
Raw = Mapping[str, Any]


def text_source(sentences: Sentences, inputs: Sequence[InputSpec], facts: ModelFacts, reading: Reading) -> Source:
    """Make a source of sentences; their tokens are in memory, and one sample at a time.

    Raises:
        DataError: The tokenizer is missing or broken, an input takes something else, or there are fewer sentences than
            the model's batch.

    """
    if reading.state:
        raise DataError("--state is for recordings and arrays: the caches of a text are fed already", "Leave it out.")
    constants, length = text_settings(inputs, reading)
    wanted = text_inputs(inputs, constants)
    if length is not None and wanted.length not in (None, length):
        hint = "Leave it out."
        raise DataError(f"the model takes {wanted.length} tokens, and --preprocess says length={length}", hint)
    wanted = replace(wanted, filled=length)
    tokenizer = byte_tokenizer(wanted.ids, facts, reading) or find_tokenizer(facts, reading, sentences.label)
    most, more = _most(wanted, tokenizer, facts, reading)
    joined = joined_windows(sentences, wanted, facts, tokenizer, most)
    pairs = [tokenizer.encode(row, most) for row in sentences.rows] if joined is None else []
    encoded = [found for found, _ in pairs] if joined is None else joined[0]
    refuse_foreign_tokens(encoded, wanted.ids.name, tokenizer.path, facts)
    cut = sum(before > most for _, before in pairs)
    count, dropped = divmod(len(encoded), wanted.batch)
    if not count:
        hint = "Give more."
        given = counted(len(encoded), "sentence")
        raise DataError(f"{sentences.label} has {given}, and the model takes {wanted.batch} at once", hint)
    told = [_cut_note(sentences, cut, most, more)] if cut else [] if joined is None else [joined[1]]
    notes = (*sentences.notes, *told)
    batches = _Batches(wanted, encoded, tokenizer.padding, _labels(sentences, facts))
    preparations = (_told(wanted, tokenizer, encoded, most), *_told_constants(constants))
    decodes = is_decoder(wanted, facts, tokenizer)
    warned = tuple(text_warnings(sentences.doubt, encoded, tokenizer, decodes=decodes))
    made = Source(
        sentences.label,
        batches.read,
        count,
        dropped,
        wanted.batch,
        preparations=preparations,
        notes=notes,
        warnings=warned,
    )
    if not wanted.caches:
        return made
    feed = _cache_feed(inputs, wanted, facts)
    steps = [len(cuts) for cuts in batches.cuts()]
    spoken = "an empty cache, then what the step before gave"
    fed = Preparation(wanted.caches[0].name, f"{spoken} (all {len(wanted.caches)} caches)", "", {"steps": sum(steps)})
    return replace(
        made,
        read=lambda: feed.run(batches.sequences(), sentences.label),
        count=sum(steps),
        preparations=(*preparations, fed),
        shareable=False,
    )


def _most(wanted: TextInputs, tokenizer: TextTokenizer, facts: ModelFacts, reading: Reading) -> tuple[int, bool]:
    """Return the most tokens of a text, and whether more may be asked for."""
    fixed, asked = wanted.length, reading.max_length
    if wanted.caches and fixed == 1:
        fixed = None
    if fixed is not None and asked is not None and asked > fixed:
        raise DataError(f"the model takes {fixed} tokens, and --max-length is {asked}", "Leave it out.")
    if asked is not None and tokenizer.longest is not None and asked > tokenizer.longest:
        where = tokenizer.path.parent
        raise DataError(
            f"--max-length is {asked}, and the files in {where} allow {tokenizer.longest} tokens", "Ask for less."
        )
    if fixed is not None:
        return min(asked or fixed, fixed), wanted.length is None
    most = asked or min(tokenizer.longest or LONGEST, LONGEST)
    places = most_places(facts.model, wanted, most, tokenizer.padding.id)
    if asked is not None and places < asked:
        raise DataError(f"--max-length is {asked}, and the model has places for {places} tokens", "Ask for less.")
    return places, wanted.length is None and places == most


def _cut_note(sentences: Sentences, cut: int, most: int, more: bool) -> str:
    hint = ": --max-length allows more" if more else ""
    return f"{sentences.label}: {counted(cut, 'text')} cut to {most} tokens{hint}"


def _told(wanted: TextInputs, tokenizer: TextTokenizer, encoded: Sequence[EncodedText], most: int) -> Preparation:
    """Say how texts become tokens."""
    lengths = [len(one.ids) for one in encoded]
    least, greatest, mean = min(lengths), max(lengths), sum(lengths) / len(lengths)
    words = f"{least} … {greatest} tokens a text, mean {mean:.1f}, at most {most}"
    words += f", filled up to {wanted.length}" if wanted.length not in (None, 1) else ""
    settings = {"tokenizer": tokenizer.path.name, "max_length": most, "padding": tokenizer.padding.id}
    settings |= {"least": least, "greatest": greatest, "mean": round(mean, 3)}
    return Preparation(wanted.ids.name, words, str(tokenizer.path), settings)


def _told_constants(constants: Mapping[str, np.ndarray]) -> Iterator[Preparation]:
    for name, array in constants.items():
        yield Preparation(name, f"always {array.ravel()[0]:g}", "--preprocess", {"value": array.ravel().tolist()})


def _labels(sentences: Sentences, facts: ModelFacts) -> dict[str, np.ndarray]:
    """Collect what the file says about each sentence, under names that start with `_`."""
    found = {f"_{name}": array for name, array in sentences.numbers.items()}
    known = {name.lower(): index for index, name in reversed(list(enumerate(class_names(facts))))}
    for name, words in sentences.words.items():
        if known and all(word.strip().lower() in known for word in words):
            found[f"_{name}"] = np.array([known[word.strip().lower()] for word in words], np.int64)
    if sentences.pairs is not None:
        found["_pair"] = np.array(sentences.pairs, np.int64)
    return found


@dataclass(frozen=True)
class _Batches:
    """Makes the arrays of each sample.

    Attributes:
        wanted: What the inputs take.
        encoded: Tokens of all texts.
        padding: How texts are made longer.
        labels: By name, what is said about each text.

    """

    wanted: TextInputs
    encoded: Sequence[EncodedText]
    padding: Padding
    labels: Mapping[str, np.ndarray]

    def read(self) -> Iterator[Raw]:
        for start in self._starts():
            arrays = self._arrays(start)
            yield self._sample(arrays, slice(None), start)

    def _starts(self) -> range:
        size = self.wanted.batch
        return range(0, len(self.encoded) // size * size, size)

    def _arrays(self, start: int) -> dict[str, np.ndarray]:
        """Return ids, types, mask and next ids of a batch, each `[batch, length]` in int64."""
        rows = self.encoded[start : start + self.wanted.batch]
        longest = max(len(row.ids) for row in rows)
        fixed = self.wanted.length
        length = longest if fixed is None or (fixed == 1 and self.wanted.caches) else fixed
        ids = np.full((len(rows), length), self.padding.id, np.int64)
        types = np.full_like(ids, self.padding.type)
        mask, following = np.zeros_like(ids), np.full_like(ids, -1)
        for place, row in enumerate(rows):
            size = len(row.ids)
            used = slice(length - size, length) if self.padding.left else slice(0, size)
            ids[place, used], types[place, used], mask[place, used] = row.ids, row.types, 1
            following[place, used.start : used.stop - 1] = row.ids[1:]
        return {"ids": ids, "types": types, "mask": mask, "next": following}

    def _sample(self, arrays: Mapping[str, np.ndarray], used: slice, start: int) -> dict[str, Any]:
        """Return the feeds of some tokens; the mask holds those before them as well, as caches do."""
        wanted, mask = self.wanted, arrays["mask"]
        seen = mask[:, : used.stop]
        positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0) if self.padding.left else _places(mask)
        made: list[tuple[InputSpec | None, np.ndarray]] = [
            (wanted.ids, arrays["ids"][:, used]),
            (wanted.types, arrays["types"][:, used]),
            (wanted.mask, seen if wanted.caches else mask[:, used]),
            (wanted.positions, positions[:, used]),
            (wanted.lengths, mask[:, used].sum(axis=1)),
            (wanted.branch, np.array([bool(used.start)])),
        ]
        sample: dict[str, Any] = dict(wanted.constants)
        for spec, array in made:
            if spec is not None:
                one = array[0] if spec.shape is not None and len(spec.shape) < array.ndim else array
                sample[spec.name] = one.astype(spec.numpy_dtype or np.int64)
        size = len(mask)
        sample["_next"], sample["_length"] = arrays["next"][:, used], mask[:, used].sum(axis=1)
        return sample | {name: array[start : start + size] for name, array in self.labels.items()}

    def cuts(self) -> Iterator[list[slice]]:
        """Yield which tokens each step of a text reads: all but the last few at once, then one by one."""
        fixed = self.wanted.length
        for start in self._starts():
            size = max(len(row.ids) for row in self.encoded[start : start + self.wanted.batch])
            if fixed is not None and fixed > 1:
                yield [slice(0, fixed)]
                continue
            first = 1 if fixed == 1 else max(size - STEPS, 1)
            yield [slice(0, first), *(slice(place, place + 1) for place in range(first, size))]

    def sequences(self) -> Iterator[Iterator[Raw]]:
        """Yield the steps of each text, without caches."""
        for start, cuts in zip(self._starts(), self.cuts(), strict=True):
            arrays = self._arrays(start)
            yield (self._sample(arrays, used, start) for used in cuts)


def _places(mask: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(mask.shape[1]), mask.shape)


def _cache_feed(inputs: Sequence[InputSpec], wanted: TextInputs, facts: ModelFacts) -> Feed:
    """Prepare empty caches, and find the outputs that fill them.

    Raises:
        DataError: A cache has a fixed length or a size that is not known, or no output.

    """
    pairs = find_pairs(wanted.caches, facts.outputs)
    if pairs is None:
        alone = [spec for spec in wanted.caches if find_pairs([spec], facts.outputs) is None] or wanted.caches
        names = ", ".join(spec.name for spec in alone[:2])
        hint = "Give arrays: an .npz file of caches that the model, its encoder or its first step made."
        raise DataError(f"no outputs go with the caches {names}", hint)
    sizes = {}
    for spec in wanted.caches:
        shape = spec.shape or ()
        opened = [axis for axis in range(1, len(shape)) if spec.fixed(axis) is None]
        if not shape or len(opened) > 1:
            raise DataError(f"the size of the cache '{spec.name}' ({spec}) is not known", "Give arrays: an .npz file.")
        sizes[spec.name] = [
            0 if axis in opened else spec.fixed(axis) or wanted.batch if axis == 0 else spec.fixed(axis) or 1
            for axis in range(len(shape))
        ]
    return make_feed(inputs, pairs, facts, sizes)
