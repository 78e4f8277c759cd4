"""The options of quantize, each declared once: for the command line, the project file and Python.

A field of `QuantizeOptions` is the declaration of an option. `onnxq quantize` and the schema of `onnxq.toml` are made
from the fields. The signature of `onnxq.quantize` is written out for type checkers, and a test holds it to the fields.

Importing this must stay cheap: the command line does it for `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from onnxq.errors import RecipeError
from onnxq.text import UNITS, parse_size

if TYPE_CHECKING:
    from onnxq.data.reading import Reading

Default = TypeVar("Default")
READING = (
    "preprocess",
    "tokenizer",
    "text_key",
    "max_length",
    "state",
)  # options that every command has that reads data
SOURCES = (
    "an .npz or .npy file, a folder of arrays, pictures or recordings, a .txt of their paths, sentences in .txt, "
    ".jsonl or .csv. Also ONNX test_data_set folders, or package.module:function. May be given several times."
)


@dataclass(frozen=True)
class Declaration:
    """The declaration of an option.

    Attributes:
        name: Of the field, and of the parameter of the command.
        kind: Type of its value, or of each of its values: str, Path, int, float or bool.
        many: Whether it may be given several times.
        optional: Whether it may be None.
        default: Its value where it is not given.
        help: What `--help` says.
        metavar: What stands for its value in `--help`; None for a flag.
        short: Short spelling on the command line, such as `-d`.
        toml: Key in the project file, `table.key` in a table; None where a project file cannot have it.
        keyword: Keyword of `onnxq.quantize`, `keyword.field` where an object stands there; None where it has none.
        least: Smallest number.
        size: Whether it is a number of bytes, which may have a unit.
        word: What may stand in place of a number.

    """

    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    help: str
    metavar: str | None = None
    short: str | None = None
    toml: str | None = None
    keyword: str | None = None
    least: int | None = None
    size: bool = False
    word: str | None = None

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def typed(self) -> Any:
        """The type of what the command line reads, before `parse`."""
        if self.many:
            return list[self.kind]  # type: ignore[name-defined]
        kind: Any = str if self.size or self.word else self.kind
        return kind | None if self.optional else kind

    def parse(self, value: Any) -> Any:
        """Return the value of the field for what the command line has read.

        Raises:
            RecipeError: It is no number, no number of bytes, or not the word.

        """
        if self.many:
            return tuple(value)
        if self.word and value is not None:
            return self._number_or_word(value)
        return parse_bytes(self.flag, value) if self.size and value is not None else value

    def _number_or_word(self, value: str) -> int | str:
        if value == self.word:
            return value
        if not (value.isascii() and value.isdecimal()):
            raise RecipeError(f"{self.flag} cannot be '{value}'", f"Give a whole number, or {self.word}.")
        return int(value)


def parse_bytes(flag: str, text: str) -> int:
    """Read a number of bytes that an option was given.

    Raises:
        RecipeError: It is none.

    """
    found = int(text) if text.isascii() and text.isdecimal() else parse_size(text)
    if not found:
        raise RecipeError(
            f"{flag} cannot be '{text}': it is a number of bytes, or one with a unit ({', '.join(UNITS)})",
            f"Write for example {flag} 10MB.",
        )
    return found


def option(default: Default, text: str, **spelling: Any) -> Default:
    """Declare an option of quantize.

    Args:
        default: Its value where it is not given.
        text: What `--help` says.
        **spelling: See `Declaration`. The keyword of `onnxq.quantize` is the name of the field by default.

    """
    declared: Default = field(default=default, metadata={"help": text, **spelling})
    return declared


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of `onnxq quantize` that change the model.

    The command holds the output path and the verbosity; the project holds the place of a build.
    """

    data: tuple[str, ...] = option((), f"Calibration data: {SOURCES}", metavar="DATA", short="-d", toml="data")
    preprocess: tuple[str, ...] = option(
        (),
        "How pictures become values: size, resize, channels, scale, mean, std and others; and sounds: rate, length, "
        "hop, scale, features. Several with commas between them, or several times.",
        metavar="KEY=VALUE",
        toml="preprocess",
        keyword="reading.preprocess",
    )
    tokenizer: Path | None = option(
        None,
        "For sentences: a tokenizer.json, its folder, or `bytes`. By default the one next to the model.",
        metavar="FILE",
        toml="tokenizer",
        keyword="reading.tokenizer",
    )
    text_key: tuple[str, ...] = option(
        (),
        "For .jsonl and .csv: the column of the text; a,b for a pair. May be given several times.",
        metavar="NAME",
        toml="text-key",
        keyword="reading.text_key",
    )
    max_length: int | None = option(
        None, "Most tokens of a sentence.", metavar="N", toml="max-length", keyword="reading.max_length", least=1
    )
    state: tuple[str, ...] = option(
        (),
        "Feed an output to an input from step to step, starting with zeros. May be given several times.",
        metavar="OUT=IN",
        toml="state",
        keyword="reading.state",
    )
    # A project file has no statistics and no kernel times: no check could tell whether they are out of date.
    stats: Path | None = option(None, "Statistics from `onnxq calibrate`, instead of a calibration.", metavar="FILE")
    recipe: str = option(
        "auto",
        "Name of a recipe, or a .toml file. See `onnxq recipes`.",
        metavar="RECIPE",
        short="-r",
        toml="recipe",
    )
    target: str | None = option(
        None,
        "The runtime that the model is for: cpu (default), web (onnxruntime-web in a browser), generic, openvino, qnn, "
        "tensorrt. Or a family of processors: cpu-avx2, cpu-vnni, cpu-arm64, cpu-armv8, native for the one at hand.",
        metavar="NAME",
        toml="target",
    )
    exclude: tuple[str, ...] = option(
        (),
        "Leave nodes float whose name or operator matches. May be given several times.",
        metavar="GLOB",
        short="-x",
        toml="exclude",
    )
    only: tuple[str, ...] = option(
        (),
        "Quantize only nodes whose name or operator matches. May be given several times.",
        metavar="GLOB",
        toml="only",
    )
    bits: int | str | None = option(  # in Python: a recipe of `onnxq.planning.recipe.in_blocks`
        None,
        "Store the weights of MatMul and Gemm in 2, 4 or 8 bit, in blocks with a scale each: for decoders and "
        "language models. With 3, a mixture with that mean; with `auto`, those of each weight that serve --max-size "
        "or --max-drop best. Without --recipe.",
        metavar="N",
        toml="bits",
        keyword="recipe.bits",
        word="auto",
    )
    block: int | None = option(
        None,
        "So many weights share a scale, with --bits: 16, 32 (default), 64, 128 or 256.",
        metavar="N",
        toml="block",
        keyword="recipe.block",
    )
    min_sqnr: float | None = option(
        None,
        "Least signal-to-quantization-noise ratio of every output, in dB; exit code 1 below it.",
        metavar="DB",
        toml="thresholds.min-sqnr",
        keyword="budget.min_sqnr",
    )
    metric: str | None = option(
        None,
        "top1, top5, agreement, cosine, psnr, iou, perplexity, greedy or spearman; or a Python function that gets all "
        "outputs and the labels of the data.",
        metavar="METRIC",
        toml="metric",
        keyword="budget.metric",
    )
    max_drop: float | None = option(
        None,
        "How much worse the metric may get, in its own unit.",
        metavar="X",
        toml="thresholds.max-drop",
        keyword="budget.max_drop",
    )
    max_size: int | None = option(
        None,
        "Most that the quantized model may take, such as 10MB; weights go to 4 bit where that is necessary.",
        metavar="SIZE",
        toml="max-size",
        keyword="budget.max_size",
        size=True,
    )
    samples: int | None = option(
        None, "Use at most the first N samples.", metavar="N", toml="samples", keyword="sample_limit", least=1
    )
    fast: bool = option(
        False,
        "Calibrate and quantize: no rescaling, weights rounded to nearest, no search unless the result is below 24 dB.",
        toml="fast",
    )
    benchmark: bool = option(
        False, "Measure kernels of the model's shapes here, and decide by their times.", keyword="timing.benchmark"
    )
    timings: Path | None = option(
        None,
        "A JSON file of kernel times to decide by; with --benchmark: where to write them.",
        metavar="FILE",
        keyword="timing.path",
    )
    reduce_range: bool = option(
        False,
        "7-bit weights where products of 8 bits could saturate on x86 processors without VNNI.",
        toml="reduce-range",
    )
    kv_cache: str | None = option(
        None,
        "int8: caches of keys and values hold codes, where GroupQueryAttention has them among the inputs and outputs "
        "of the model.",
        metavar="TYPE",
        toml="kv-cache",
    )
    custom_ops: tuple[Path, ...] = option(  # in Python: `onnxq.register_custom_ops`
        (),
        "A shared library of custom operators for onnxruntime. May be given several times.",
        metavar="LIBRARY",
        toml="custom-ops",
        keyword=None,
    )
    resume: bool = option(  # a build of a project is repeated whole
        False,
        "With --bits: keep chosen codes in OUT.resume until OUT is written, and go on from those of an interrupted "
        "run.",
    )
    external_data: bool = option(
        False, "Put the weights into OUT.data; beyond 2 GB that happens by itself.", toml="external-data"
    )

    @property
    def reading(self) -> Reading:
        """How data that are no arrays become samples."""
        from onnxq.data.reading import Reading

        return Reading(**{name: getattr(self, name) for name in READING})

    def planning(self) -> dict[str, Any]:
        """Return the keyword arguments of functions that plan, but for the recipe; those of defaults are left out."""
        kept = ("data", "reading", "stats", "exclude", "only", "sample_limit", "timing")
        return {name: value for name, value in self.arguments().items() if name in kept}

    def arguments(self, *, force: bool = False) -> dict[str, Any]:
        """Return the keyword arguments of `onnxq.quantize` that say the same; those of defaults are left out.

        Args:
            force: Whether files that exist are replaced.

        Raises:
            RecipeError: Options contradict each other; see `Budget` and `block_recipe`.

        """
        from onnxq.planning.recipe import block_recipe
        from onnxq.search.budget import Budget
        from onnxq.stages.kernel_timing import Timing

        found: dict[str, Any] = {"force": force}
        grouped: dict[str, dict[str, Any]] = {}
        for one in declarations(type(self)).values():
            value = getattr(self, one.name)
            keyword, _, part = (one.keyword or "").partition(".")
            if value == one.default or not keyword:
                continue
            if part:
                grouped.setdefault(keyword, {})[part] = value
            else:
                found[keyword] = value
        if "recipe" in grouped:
            found["recipe"] = block_recipe(self.recipe, self.bits, self.block, self.target)
        if "reading" in grouped:
            found["reading"] = self.reading
        if "budget" in grouped:
            found["budget"] = Budget(**grouped["budget"])
        if "timing" in grouped:
            found["timing"] = Timing(**grouped["timing"])
        return found


def declarations(options: type[QuantizeOptions] = QuantizeOptions) -> dict[str, Declaration]:
    """Return the declaration of each option by its name, in the order of `--help`."""
    found = _DECLARED.get(options)
    if found is None:  # reading types takes time, which every command would spend on each option
        types = get_type_hints(options)
        found = {
            one.name: _declaration(one.name, types[one.name], one.default, **one.metadata) for one in fields(options)
        }
        _DECLARED[options] = found
    return found


_DECLARED: dict[type[QuantizeOptions], dict[str, Declaration]] = {}


def _declaration(name: str, typed: Any, default: object, **spelling: Any) -> Declaration:
    many = get_origin(typed) is tuple
    kinds = get_args(typed) or (typed,)
    return Declaration(name, kinds[0], many, NoneType in kinds, default, **{"keyword": name, **spelling})
