"""What a runtime asks of a quantized model: element types, operator sets, and where QuantizeLinear has to stand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from onnxq.errors import RecipeError
from onnxq.words import did_you_mean


@dataclass(frozen=True)
class Target:
    """A runtime, as the table `placement` of its TOML file has it; comments there name the sources.

    Attributes:
        name: What `--target` calls it.
        description: One line.
        activations: Element types that activations may have; the first is what a recipe gets that asks for none.
        wide: The one of them of 16 bits that its kernels are fast for, or an empty string.
        domains: Operator sets that quantizing operators may be of.
        stored: How a weight is stored that computes in float, where the recipe does not say.
        products: How `auto` writes static products: as Q/DQ pairs, or as MatMulInteger.
        bias: Biases of Q/DQ pairs as int32 behind DequantizeLinear, or in float.
        run_time: Whether DynamicQuantizeLinear and integer operators are known.
        timed: Whether kernel times are known, which decide where 8 bit pays.
        conv_output: Whether the output of a Conv is quantized.
        product_output: Whether the output of MatMul and Gemm is.
        residual: Which inputs of an Add behind a Conv are quantized: those `between` quantized neighbours, the
            `other` one than the Conv's, or `both`.
        between: Operators without weights that are quantized between quantized neighbours.
        always: Operators that are quantized wherever they stand, constant inputs included.
        per_tensor: Operators whose weights have one scale.
        tables: Whether a table of 8-bit codes may be looked up.
        simplify: Whether functions that the model spells out are written as one operator, with a newer operator set if
            need be.
        conv_channels: Its kernels for an integer Conv are fast for multiples of so many channels in and out.
        conv_filters: To multiples of so many channels out are filled up those that are not.
        conv_least: Fewer channels out than these are filled up, too.
        depthwise: The same for a depthwise Conv, in and out alike.

    """

    name: str
    description: str
    activations: tuple[str, ...]
    wide: Literal["", "uint16", "int16"]
    domains: tuple[str, ...]
    stored: Literal["cast-mul", "qdq"]
    products: Literal["qdq", "integer"]
    bias: Literal["int32", "float"]
    run_time: bool
    timed: bool
    conv_output: bool
    product_output: bool
    residual: Literal["between", "other", "both"]
    between: tuple[str, ...]
    always: tuple[str, ...]
    per_tensor: tuple[str, ...]
    tables: bool
    simplify: bool
    conv_channels: int
    conv_filters: int
    conv_least: int
    depthwise: int


def target_names() -> list[str]:
    """List the targets that come with onnxq."""
    names = [path.name for path in files(__package__).iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


@cache
def load_target(name: str) -> Target:
    """Read what a target asks for.

    Raises:
        RecipeError: There is none of that name.

    """
    names = target_names()
    if name not in names:
        hint = did_you_mean(name, names) or f"Choose one of {', '.join(names)}."
        raise RecipeError(f"there is no target named '{name}'", hint)
    table: dict[str, Any] = tomllib.loads((files(__package__) / f"{name}.toml").read_text("utf-8"))["placement"]
    table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    assert table.keys() == {field.name for field in fields(Target)} - {"name"}, name
    return Target(name=name, **table)
