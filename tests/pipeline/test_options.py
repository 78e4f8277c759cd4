"""Each option of quantize is declared once: the command line, the project file and Python agree with it."""

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

import onnxq
from onnxq.cli.app import command
from onnxq.cli.options import takes_options
from onnxq.data.reading import Reading
from onnxq.errors import ProjectError, RecipeError
from onnxq.pipeline.options import QuantizeOptions, declarations, option
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import block_recipe, choose_recipe, in_blocks, load_recipe
from onnxq.project.entry import Thresholds
from onnxq.project.file import KEYS, parse_project
from onnxq.search.budget import Budget
from onnxq.stages.kernel_timing import Timing

GROUPS: dict[str, Callable[..., Any]] = {
    "budget": Budget,
    "timing": Timing,
    "recipe": block_recipe,
    "reading": Reading,
}
# What says where files go, what is printed, and what only a program can give: no option of the model.
OF_THE_COMMAND = {
    "model",
    "output",
    "report",
    "output_format",
    "dry_run",
    "force",
    "config",
    "no_config",
    "jobs",
    "memory",
    "executor",
    "help",
}
OF_PYTHON = {"model", "output", "samples", "budget", "timing", "force", "dry_run", "detailed", "accept", "observer"}
OF_A_PROJECT = {"float", "quantized", "thresholds", "verify-data", "ignore"}
OPTIONS = QuantizeOptions(
    data=("a.npz", "b.npz"),
    preprocess=("size=8", "scale=255"),
    tokenizer=Path("tokenizer.json"),
    text_key=("question,answer",),
    max_length=128,
    state=("hn=h",),
    stats=Path("s.npz"),
    recipe="static-int8",
    target="web",
    exclude=("Conv",),
    only=("Gemm", "MatMul"),
    bits=4,
    block=64,
    min_sqnr=30.0,
    metric="scores:top1",
    max_drop=0.5,
    max_size=10_000_000,
    samples=8,
    fast=True,
    benchmark=True,
    timings=Path("t.json"),
    reduce_range=True,
    kv_cache="int8",
    custom_ops=(Path("ops.so"),),
    resume=True,
    external_data=True,
)


def test_the_command_line_has_each_option_and_no_other() -> None:
    found = {p.name: p for p in command().commands["quantize"].params}
    assert set(found) - OF_THE_COMMAND - {"quiet", "verbose"} == set(declarations())
    for name, one in declarations().items():
        assert found[name].opts == [one.flag, *([one.short] if one.short else [])]
        assert found[name].help == one.help
        assert (found[name].metavar or "") == (one.metavar or ""), name


def test_the_project_file_has_each_option_that_has_a_key() -> None:
    keys = [one.toml for one in declarations().values() if one.toml is not None]
    assert {key for key in keys if "." not in key} == set(KEYS) - OF_A_PROJECT
    limits = {f"thresholds.{field.name.replace('_', '-')}" for field in fields(Thresholds)}
    assert {key for key in keys if "." in key} <= limits


def test_python_has_each_option_with_its_default_and_no_other_keyword() -> None:
    given = inspect.signature(quantize).parameters
    keywords = {(one.keyword or "").partition(".")[0]: one for one in declarations().values() if one.keyword}
    assert set(given) - OF_PYTHON == set(keywords) - {"budget", "timing"}
    for name, one in declarations().items():
        if one.keyword is None:
            assert name == "custom_ops"  # `onnxq.register_custom_ops`
            continue
        keyword, _, part = one.keyword.partition(".")
        where = inspect.signature(GROUPS[keyword]).parameters[part] if part else given[keyword]
        if keyword != "recipe" or not part:
            assert (where.default or None) == (one.default or None), name


def test_python_takes_the_type_of_each_option() -> None:
    types = get_type_hints(quantize)
    for one in declarations().values():
        keyword, _, part = (one.keyword or "").partition(".")
        if keyword:
            taken = str(get_type_hints(GROUPS[keyword])[part] if part else types[keyword])
            assert one.kind.__name__ in taken, one.name
            assert not one.many or "Sequence" in taken, one.name


def test_the_docstring_of_quantize_names_every_parameter() -> None:
    described = inspect.getdoc(quantize) or ""
    assert [name for name in inspect.signature(quantize).parameters if f"    {name}: " not in described] == []


def test_prepare_takes_what_changes_the_recipe() -> None:
    given = inspect.signature(onnxq.prepare).parameters
    changes = set(inspect.signature(choose_recipe).parameters) - {"source"}
    assert changes <= set(declarations())
    assert changes <= set(given)


def words(options: QuantizeOptions) -> Iterable[str]:
    """The options as a command line says them."""
    for name, one in declarations().items():
        value = getattr(options, name)
        if one.kind is bool:
            yield from [one.flag] * value
        else:
            for item in value if one.many else [value]:
                yield from (one.flag, str(item))


def seen(arguments: Iterable[str], kind: type[QuantizeOptions] = QuantizeOptions) -> QuantizeOptions:
    """What a command gets whose parameter `options` is of a kind."""
    found = []

    def run(options: kind) -> None:  # type: ignore[valid-type]
        found.append(options)

    run.__annotations__["options"] = kind
    app = typer.Typer()
    app.command()(takes_options()(run))
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_every_option_comes_through_the_command_line() -> None:
    assert all(getattr(OPTIONS, name) != one.default for name, one in declarations().items())
    assert seen(words(OPTIONS)) == OPTIONS
    assert seen([]) == QuantizeOptions()


def test_options_become_the_arguments_of_quantize() -> None:
    arguments = replace(OPTIONS, recipe="auto").arguments(force=True)
    inspect.signature(quantize).bind("m.onnx", **arguments)
    assert arguments.pop("budget") == Budget(30.0, "scores:top1", 0.5, 10_000_000)
    assert arguments.pop("timing") == Timing(True, Path("t.json"))
    assert arguments.pop("recipe") == in_blocks(4, 64, "web")
    assert arguments["sample_limit"] == 8
    assert QuantizeOptions().arguments() == {"force": False}
    with pytest.raises(RecipeError, match="max-drop needs a metric"):
        QuantizeOptions(max_drop=1.0).arguments()
    with pytest.raises(RecipeError, match="chooses the recipe itself"):
        OPTIONS.arguments()


def test_a_project_file_gives_the_options_that_it_has_keys_for() -> None:
    lines = ["[[models]]", 'float = "m.onnx"']
    for name, one in declarations().items():
        value = getattr(OPTIONS, name)
        text = [str(item) for item in value] if one.many else str(value) if isinstance(value, Path) else value
        if one.toml:
            lines.append(f"{one.toml} = {str(text).lower() if isinstance(text, bool) else repr(text)}")
    entry = parse_project(tomllib.loads("\n".join(lines)), Path("onnxq.toml")).entries[0]
    left = {name: one.default for name, one in declarations().items() if one.toml is None}
    assert entry.options == replace(OPTIONS, **left)


def test_a_key_with_a_slip_gets_the_right_one_offered() -> None:
    with pytest.raises(ProjectError, match="unknown key 'reduce-rang'") as refusal:
        parse_project({"models": [{"float": "m.onnx", "reduce-rang": True}]}, Path("onnxq.toml"))
    assert refusal.value.hint == "Did you mean 'reduce-range'?"


@dataclass(frozen=True)
class MoreOptions(QuantizeOptions):
    """An option more than there are: this line is all that the command line needs."""

    seed: int | None = option(None, "Where random numbers start.", metavar="N", toml="seed", least=0)


def test_a_new_option_is_one_line() -> None:
    assert seen(["--seed", "7", "--fast"], MoreOptions) == MoreOptions(seed=7, fast=True)
    assert declarations(MoreOptions)["seed"].keyword == "seed"
    assert MoreOptions(seed=7).arguments()["seed"] == 7


@pytest.mark.parametrize("arguments", [{"target": "web"}, {"reduce_range": True}])
def test_options_of_python_change_the_recipe(arguments: dict[str, Any]) -> None:
    sample = Path(__file__).parents[2] / "sample_models" / "digits_cnn.onnx"
    report = quantize(sample, dry_run=True, **arguments)
    (name, value), *_ = arguments.items()
    assert f"{name} = " in report.rules
    assert choose_recipe("auto", **arguments) == load_recipe("auto").setting(**arguments)
    assert getattr(choose_recipe("auto", **arguments).scheme, name) == value


def test_declaring_options_imports_nothing_heavy() -> None:
    code = "import sys, onnxq.pipeline.options; sys.exit('numpy' in sys.modules or 'onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
