"""Arguments and options that several commands share.

Tests: `tests/cli/test_cli_target.py`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxq.cli.completion import recipes, targets

if TYPE_CHECKING:
    from onnxq.planning.recipe import Recipe


class Format(StrEnum):
    """How the product on stdout is written."""

    TEXT = "text"
    JSON = "json"


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The float model, an .onnx file.", show_default=False)]
SOURCES = (
    "an .npz or .npy file, a folder of them, ONNX test_data_set folders, or package.module:function. May be given "
    "several times."
)
Data = Annotated[
    list[str],
    typer.Option("--data", "-d", metavar="DATA", help=f"Calibration data: {SOURCES}", show_default=False),
]
TestData = Annotated[
    list[str],
    typer.Option("--data", "-d", metavar="DATA", help=f"What to run on: {SOURCES}", show_default=False),
]
RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe",
        "-r",
        metavar="RECIPE",
        help="Name of a recipe, or a .toml file. See `onnxq recipes`.",
        autocompletion=recipes,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="The runtime that the model is for: cpu (default), a family of processors (cpu-avx2, cpu-vnni, cpu-arm64, "
        "cpu-armv8, or native for the one at hand), web (onnxruntime-web in a browser), generic, openvino, qnn or "
        "tensorrt.",
        show_default=False,
        autocompletion=targets,
    ),
]
Exclude = Annotated[
    list[str],
    typer.Option(
        "--exclude",
        "-x",
        metavar="GLOB",
        help="Leave nodes float whose name or operator matches. May be given several times.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str],
    typer.Option(
        "--only",
        metavar="GLOB",
        help="Quantize only nodes whose name or operator matches. May be given several times.",
        show_default=False,
    ),
]
Stats = Annotated[
    Path | None,
    typer.Option(
        "--stats",
        metavar="FILE",
        help="Statistics from `onnxq calibrate`, instead of a calibration.",
        show_default=False,
    ),
]
SampleLimit = Annotated[
    int | None,
    typer.Option("--samples", metavar="N", min=1, help="Use at most the first N samples.", show_default=False),
]
Bits = Annotated[
    int | None,
    typer.Option(
        "--bits",
        metavar="N",
        help="Store the weights of MatMul and Gemm in 2, 4 or 8 bit, in blocks with a scale each: for decoders and "
        "language models. Without --recipe.",
        show_default=False,
    ),
]
Block = Annotated[
    int | None,
    typer.Option(
        "--block",
        metavar="N",
        help="So many weights share a scale, with --bits: 16, 32 (default), 64, 128 or 256.",
        show_default=False,
    ),
]
MinSqnr = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="Least signal-to-quantization-noise ratio of every output, in dB; exit code 1 below it.",
        show_default=False,
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="A Python function that says how good a model is: it gets all outputs and the labels of the data.",
        show_default=False,
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option("--max-drop", metavar="X", help="How far the metric may fall.", show_default=False),
]
MaxSize = Annotated[
    str | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        help="Most that the quantized model may take, such as 10MB; weights go to 4 bit where that is necessary.",
        show_default=False,
    ),
]
CustomOps = Annotated[
    list[Path],
    typer.Option(
        "--custom-ops",
        metavar="LIBRARY",
        help="A shared library of custom operators for onnxruntime. May be given several times.",
        show_default=False,
    ),
]
TimingsFile = Annotated[
    Path | None,
    typer.Option(
        "--timings",
        metavar="FILE",
        help="Kernel times that `quantize --benchmark` has written, to decide by.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist already.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to write the result to stdout.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The project file; by default the nearest onnxq.toml, or pyproject.toml with [tool.onnxq].",
        show_default=False,
    ),
]


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Use at most so many processors, and build as many models of a project at a time; by default all.",
        show_default=False,
    ),
]


def use_runtime(libraries: list[Path], most: int | None) -> None:
    """Let onnxruntime know the libraries of `--custom-ops`, and use no more processors than `--jobs` names, if any."""
    use_custom_ops(libraries)
    if most is not None:
        from onnxq.targets.host import limit_processors

        limit_processors(most)


def use_custom_ops(libraries: list[Path]) -> None:
    """Let onnxruntime know the operators of the libraries that `--custom-ops` names."""
    if libraries:
        from onnxq.runtime.custom_ops import register_custom_ops

        for library in libraries:
            register_custom_ops(library)


def parsed_size(text: str | None) -> int | None:
    """Read the value of `--max-size`: a number of bytes, or one with a unit."""
    from onnxq.errors import RecipeError
    from onnxq.text import UNITS, parse_size

    if text is None:
        return None
    found = int(text) if text.isascii() and text.isdecimal() else parse_size(text)
    if not found:
        raise RecipeError(
            f"--max-size cannot be '{text}': it is a number of bytes, or one with a unit ({', '.join(UNITS)})",
            "Write for example --max-size 10MB.",
        )
    return found


def chosen_recipe(
    recipe: str, target: str | None, *, reduce_range: bool = False, bits: int | None = None, block: int | None = None
) -> str | Recipe:
    """Give the recipe with what options change of it; its bare name where they change nothing."""
    from onnxq.planning.recipe import load_recipe

    if bits is not None or block is not None:
        chosen = block_recipe(recipe, bits, block, target)
    elif target is None and not reduce_range:
        return recipe
    else:
        chosen = load_recipe(recipe)
    chosen = chosen if target is None else chosen.for_target(target)
    return chosen.setting(reduce_range=True) if reduce_range else chosen


def block_recipe(recipe: str, bits: int | None, block: int | None, target: str | None) -> Recipe:
    """Return the recipe that `--bits` and `--block` stand for."""
    from onnxq.errors import RecipeError
    from onnxq.planning.recipe import BLOCK_BITS, BLOCK_SIZES, in_blocks

    if bits is None:
        raise RecipeError("--block says how many weights share a scale, with --bits", "Add --bits 4.")
    if recipe != "auto":
        hint = f"Leave --recipe {recipe} out, or set block_size in a recipe file."
        raise RecipeError("--bits chooses the recipe itself", hint)
    if bits not in BLOCK_BITS:
        hint = f"Choose one of {', '.join(map(str, BLOCK_BITS))}."
        raise RecipeError(f"--bits cannot be {bits}: onnxruntime multiplies by no such weights", hint)
    if block is not None and block not in BLOCK_SIZES:
        raise RecipeError(f"--block cannot be {block}", f"Choose one of {', '.join(map(str, BLOCK_SIZES))}.")
    return in_blocks(bits, block, target)
