"""Settings of files that hold no arrays, and the facts about a model that their readers use.

Importing this must stay cheap: the command line does it for `--help`.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxq.data.validation import InputSpec
    from onnxq.ir import Model


@dataclass(frozen=True)
class Reading:
    """The user's settings for files that hold no arrays.

    Attributes:
        preprocess: Settings for pictures, each `KEY=VALUE` or several with commas between them; `KEY` may start with
            the name of an input and a point. Sounds have settings, too.
        tokenizer: A `tokenizer.json`, the folder that holds one, or `bytes`; by default the one next to the model.
        text_key: Columns or keys that hold the text. Commas join a pair, `a,b`; several are texts of their own.
        max_length: Most tokens of a text.
        state: States that are fed from step to step, each `OUTPUT=INPUT`.

    """

    preprocess: str | Sequence[str] = ()
    tokenizer: str | Path | None = None
    text_key: str | Sequence[str] = ()
    max_length: int | None = None
    state: str | Sequence[str] = ()


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model that samples are for.

    Attributes:
        path: Its file; None for a model in memory.
        metadata: Its key-value pairs.
        outputs: What it declares of its outputs.
        model: The float model, where samples need it run: its states are what it made of the step before.

    """

    path: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[InputSpec, ...] = ()
    model: Model | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, model: Model) -> ModelFacts:
        """Collect what a model says."""
        from onnxq.data.validation import InputSpec

        outputs = tuple(InputSpec(value.name, value.dtype, value.shape) for value in model.graph.outputs)
        return cls(model.path, dict(model.metadata), outputs, model)

    @property
    def classes(self) -> int | None:
        """How many classes the model tells apart: the elements of its only output for one sample, where it says so."""
        if len(self.outputs) != 1 or not self.outputs[0].shape or len(self.outputs[0].shape) < 2:
            return None
        sizes = [size for size in self.outputs[0].shape[1:] if size != 1]
        return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] > 1 else None

    def beside(self, *names: str) -> Path | None:
        """Find the first of some files next to the model, or in the folder above one called `onnx`."""
        if self.path is None:
            return None
        folder = self.path.absolute().parent
        folders = [folder, folder.parent] if folder.name == "onnx" else [folder]
        return next((found for one in folders for name in names if (found := one / name).is_file()), None)


PLAIN, NOTHING_KNOWN = Reading(), ModelFacts()


@dataclass(frozen=True)
class Preparation:
    """The preprocessing that made the values of one input from files.

    Attributes:
        input: Name of the input.
        words: For people.
        origin: Where that was said, such as `preprocessor_config.json`.
        settings: For programs.
        assumed: What was assumed for lack of a setting, for a warning; empty if nothing was.

    """

    input: str
    words: str
    origin: str
    settings: Mapping[str, Any]
    assumed: str = ""

    def __str__(self) -> str:
        return f"{self.input}: {self.words}" + (f" ({self.origin})" if self.origin else "")
