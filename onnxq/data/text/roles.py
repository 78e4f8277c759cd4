"""The role of each input of a language model, by its name, type and shape.

Tests: `tests/data/test_text_source.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

CACHE = re.compile(r"^past|past_key|past_value|cache|(^|[._])kv[._]|conv_state|ssm_state")


@dataclass(frozen=True)
class TextInputs:
    """The inputs of a language model.

    Attributes:
        ids: Token ids.
        mask: 1 for tokens, 0 for what fills up; None where the model has none.
        types: Token types; likewise.
        positions: Positions of tokens; likewise.
        lengths: Number of tokens of each text; likewise.
        branch: Whether caches are used, a boolean of merged decoders; likewise.
        caches: Inputs that hold what the model made of the tokens before.
        constants: Inputs that have a value for all samples.
        filled: How many tokens texts are filled up to if the model leaves that open.

    """

    ids: InputSpec
    mask: InputSpec | None = None
    types: InputSpec | None = None
    positions: InputSpec | None = None
    lengths: InputSpec | None = None
    branch: InputSpec | None = None
    caches: tuple[InputSpec, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    filled: int | None = None

    @property
    def batch(self) -> int:
        """How many texts one sample has."""
        return (self.ids.fixed(0) or 1) if _rank(self.ids) == 2 else 1

    @property
    def length(self) -> int | None:
        """How many tokens a text has; None where that is open."""
        return self.ids.fixed(_rank(self.ids) - 1) or self.filled


def takes_text(inputs: Sequence[InputSpec]) -> bool:
    """Whether an input takes token ids."""
    return any(_role(spec) == "ids" for spec in inputs)


def text_inputs(inputs: Sequence[InputSpec], constants: Mapping[str, np.ndarray]) -> TextInputs:
    """Tell what each input takes.

    Args:
        inputs: What the model wants.
        constants: By name, inputs that have a value for all samples.

    Raises:
        DataError: No input takes token ids, several do, or an input takes something else.

    """
    roles: dict[str, list[InputSpec]] = {}
    for spec in inputs:
        if spec.name not in constants:
            roles.setdefault(_role(spec), []).append(spec)
    for spec in roles.get("", []):
        hint = f"Give it a value, --preprocess {spec.name}.value=0, or give arrays."
        if _rank(spec) > 2:
            hint = "Run what makes it, such as an encoder, on your texts. Save it with their tokens in an .npz file."
        raise DataError(f"'{spec.name}' ({spec}) takes something other than tokens, masks and caches", hint)
    caches = tuple(roles.pop("cache", []))
    for role, specs in roles.items():
        if len(specs) > 1:
            names = " and ".join(f"'{spec.name}'" for spec in specs[:2])
            what = "token ids" if role == "ids" else role
            raise DataError(f"{names} both look like {what}", "Give arrays: which sentence goes where is not known.")
    if "ids" not in roles:
        raise DataError("no input takes token ids", "Give arrays: an .npz file.")
    found = TextInputs(
        caches=caches, constants=constants, filled=None, **{role: specs[0] for role, specs in roles.items()}
    )
    for row in (found.mask, found.types, found.positions):
        if row is not None and row.shape is not None and _rank(row) != _rank(found.ids):
            hint = "Give arrays: masks of that shape are made differently by each model."
            raise DataError(f"'{row.name}' ({row}) is no row of numbers for each text", hint)
    return found


def _role(spec: InputSpec) -> str:
    """Return the field of `TextInputs` that an input belongs to; empty where none fits."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", spec.name).lower()
    kind = None if spec.numpy_dtype is None else spec.numpy_dtype.kind
    rank = _rank(spec)
    if kind == "b":
        return "branch" if "use_cache" in name else "mask" if "mask" in name else ""
    if CACHE.search(name) and kind == "f":
        return "cache"
    if "mask" in name:
        return "mask"
    if kind not in ("i", "u"):
        return ""
    if rank == 1 and ("length" in name or "lens" in name):
        return "lengths"
    if rank not in (1, 2) or "decoder" in name or "unique" in name:
        return ""
    if "token_type" in name or "segment" in name or "type_id" in name:
        return "types"
    if "position" in name or "pos_id" in name:
        return "positions"
    return "ids" if re.search(r"(^|[^a-z])(ids?|tokens?|inputs?|text|bytes?)([^a-z]|$)", name) else ""


def _rank(spec: InputSpec) -> int:
    return 2 if spec.shape is None else len(spec.shape)
