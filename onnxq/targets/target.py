"""Requirements of a runtime: element types, operator sets, and the places of QuantizeLinear.

Tests: `tests/targets/test_targets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from onnxq.targets.tables import read_target, table_name, target_names

__all__ = ["Target", "load_target", "target_names"]


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
        saturates: Whether products of uint8 activations and int8 weights of all 8 bits can saturate on a processor that
            the target is for.
        ramps_as_sums: Whether HardSigmoid and HardSwish are faster as sums of codes.
        means_as_convs: Whether an AveragePool of codes is faster as a depthwise Conv of equal weights.
        transposed_convs: Whether it has an integer kernel for ConvTranspose.
        sums_stay_float: Whether it makes a float Gemm of a MatMul between Q/DQ pairs and the Add behind it.
        clamps_stay_float: Whether a Relu or Clip behind a product between Q/DQ pairs keeps the product in float.
        moves_pairs: Whether it moves Q/DQ pairs across operators planned in float, which then compute in 8 bit.
        blocks_fused: Whether it has a fast kernel for 8-bit weights with a scale for each block, and makes it of
            DequantizeLinear and MatMul, too.
        token_rows: Most rows of a product with weights in small blocks that are faster with activations in 8 bits than
            in float (`accuracy_level` of MatMulNBits); 0 where all are.
        signed_from_21: Whether it loads int8 activations in models of operator set 21 or later.
        at_hand: Whether its kernels are those of onnxruntime on a processor, which can be timed here.

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
    saturates: bool = False
    ramps_as_sums: bool = False
    means_as_convs: bool = False
    transposed_convs: bool = True
    sums_stay_float: bool = False
    clamps_stay_float: bool = False
    moves_pairs: bool = False
    blocks_fused: bool = False
    token_rows: int = 0
    signed_from_21: bool = True
    at_hand: bool = True


def load_target(name: str) -> Target:
    """Read what a target asks for.

    Args:
        name: Of a target; `native` gives the family of the processor at hand, under its own name.

    Raises:
        RecipeError: There is none of that name.

    """
    return _loaded(table_name(name))


@cache
def _loaded(name: str) -> Target:
    table: dict[str, Any] = read_target(name)["placement"]
    table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    assert table.keys() <= {field.name for field in fields(Target)} - {"name"}, name
    return Target(name=name, **table)
