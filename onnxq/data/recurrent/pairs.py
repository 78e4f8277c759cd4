"""Pair the state inputs of a model with the outputs that hold their next values.

Tests: `tests/data/test_recurrent_states.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import did_you_mean

WORDS = "in|input|out|output|next|new|old|prev|previous|past|present|cur|current|updated"
SIDES = re.compile(rf"(?<![a-z])({WORDS})(?![a-z])")


def state_pairs(texts: Iterable[str], inputs: Sequence[InputSpec], outputs: Sequence[InputSpec]) -> dict[str, str]:
    """Read what a user says about states.

    Args:
        texts: Each `OUTPUT=INPUT`, or several with commas between them. A `*` on both sides stands for the same
            characters, and for all outputs that fit.
        inputs: Of the model.
        outputs: Of the model.

    Returns:
        By input, the output that it is fed from.

    Raises:
        DataError: A name is unknown, an input is fed twice, or the two cannot have one shape and type.

    """
    found: dict[str, str] = {}
    for text in _single_pairs(texts, inputs, outputs):
        output, equals, name = (part.strip() for part in text.partition("="))
        if not equals or not output or not name:
            raise DataError(f"--state has '{text}', which is not OUTPUT=INPUT", "Write for example --state hn=h.")
        if any(spec.name == output for spec in inputs) and any(spec.name == name for spec in outputs):
            raise DataError(f"--state has '{text}' the wrong way round", f"Write the output first: {name}={output}.")
        into, source = _named(name, inputs, "input"), _named(output, outputs, "output")
        if name in found:
            raise DataError(f"--state feeds '{name}' twice", "Give it once.")
        if not fits(source, into):
            raise DataError(
                f"--state: output '{output}' is {source}, and input '{name}' is {into}",
                "A state has one shape and type on both sides.",
            )
        found[name] = output
    return found


def _single_pairs(texts: Iterable[str], inputs: Sequence[InputSpec], outputs: Sequence[InputSpec]) -> Iterator[str]:
    """Split texts at commas, and write a pair for each output that a `*` stands for."""
    names = {spec.name for spec in inputs}
    for text in (part.strip() for one in texts for part in one.split(",")):
        output, _, name = (part.strip() for part in text.partition("="))
        if output.count("*") != 1 or name.count("*") != 1:
            yield text
            continue
        front, _, back = output.partition("*")
        pattern = re.compile(f"{re.escape(front)}(.*){re.escape(back)}", re.DOTALL)
        stems = (match[1] for spec in outputs if (match := pattern.fullmatch(spec.name)) is not None)
        pairs = [f"{front}{stem}{back}={name.replace('*', stem)}" for stem in stems if name.replace("*", stem) in names]
        if not pairs:
            raise DataError(f"--state: no output and input fit '{text}'", "See their names with `onnxq inspect`.")
        yield from pairs


def _named(name: str, specs: Sequence[InputSpec], side: str) -> InputSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    names = [spec.name for spec in specs]
    hint = did_you_mean(name, names) or f"It has {', '.join(names)}."
    raise DataError(f"--state: the model has no {side} '{name}'", hint)


def fits(output: InputSpec, into: InputSpec) -> bool:
    """Whether an output can be fed to an input: one type, one rank, and no size that both fix differently."""
    if output.dtype is not None and into.dtype is not None and output.dtype != into.dtype:
        return False
    if output.shape is None or into.shape is None:
        return True
    if len(output.shape) != len(into.shape):
        return False
    sizes = [(output.fixed(axis), into.fixed(axis)) for axis in range(len(into.shape))]
    return all(None in pair or pair[0] == pair[1] for pair in sizes)


def find_pairs(states: Sequence[InputSpec], outputs: Sequence[InputSpec]) -> dict[str, str] | None:
    """Pair inputs that may be states with outputs, by their names first and their order then.

    Args:
        states: Inputs that take nothing else.
        outputs: Of the model.

    Returns:
        By input, the output that it is fed from; None where an input has no output of its own.

    """
    left = list(outputs)
    found: dict[str, str] = {}
    for spec in states:
        named = [one for one in left if fits(one, spec) and _is_named_alike(spec.name, one.name)]
        if len(named) == 1:
            found[spec.name] = named[0].name
            left.remove(named[0])
    rest = [spec for spec in states if spec.name not in found]
    for spec in rest:
        fitting = [one for one in left if fits(one, spec)]
        same = [one for one in rest if one.name not in found and (one.dtype, one.shape) == (spec.dtype, spec.shape)]
        if len(fitting) != len(same):
            return None
        found[spec.name] = fitting[0].name
        left.remove(fitting[0])
    return found


def _is_named_alike(name: str, other: str) -> bool:
    first, second = _stem(name), _stem(other)
    return bool(first) and (first == second or second in (f"{first}n", f"n{first}") or first == second.rstrip("1"))


def _stem(name: str) -> str:
    """Return a name without words that only say which side of the step it is on."""
    lowered = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    lowered = lowered.replace("past_key_values", "key_values").replace("_", ".")
    return re.sub(r"[^a-z0-9]|key\.values", "", SIDES.sub("", lowered))
