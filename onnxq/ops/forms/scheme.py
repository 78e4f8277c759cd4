"""The settings of a node's quantization, made by a recipe.

Tests: `tests/planning/test_recipe.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxq.targets import DEFAULT

SchemeName = Literal[
    "float", "auto", "dynamic-int8", "static-int8", "weight-int12", "weight-int8", "weight-int4", "weight-int2"
]
Granularity = Literal["channel", "tensor"]
WrittenForm = Literal["cast-mul", "qdq", "matmulnbits", "integer"]
ActivationType = Literal["uint8", "int8", "uint16", "int16"]
Domain = Literal["ai.onnx", "com.microsoft"]
ActivationGranularity = Literal["auto", "tensor", "row"]
RangesSetting = Literal["auto", "minmax", "percentile", "mse", "output-error"]
WEIGHT_BITS: dict[str, int] = {"weight-int12": 12, "weight-int4": 4, "weight-int2": 2}  # of schemes with other than 8


@dataclass(frozen=True)
class Scheme:
    """How one node is to be quantized.

    Attributes:
        name: The scheme; `auto` lets the plan choose, `float` leaves the node alone.
        target: Name of the runtime that the model is for; it decides what the recipe leaves open.
        granularity: One scale per output channel of a weight, or one for the whole tensor.
        form: How a weight that computes in float is stored: Cast and Mul, which onnxruntime folds when it loads the
            model, or DequantizeLinear; in a product also as MatMulNBits of `com.microsoft`, which has it built in.
            And how a static product is written: `integer` is MatMulInteger (and Cast and Mul elsewhere), all others
            are Q/DQ pairs.
        block_size: How many weights along the contracted axis of a MatMul or Gemm that computes in float share a
            scale; 0 for one scale a channel, which all other operators have.
        zero_points: Whether each block of a weight has a zero point of its own; otherwise codes are symmetric.
        head_bits: Under `weight-int4` and `weight-int2`: bits of the head, the product that gives an output of the
            model; 0 for as many as the others have.
        mixed_bits: Under `weight-int4`: whether a search chooses the bits of each weight in blocks with zero points, so
            that the file keeps to a size or the outputs to a loss.
        mean_bits: Under `mixed_bits`: bits that codes have on average, those of the head apart; 0 where a limit says.
        accuracy_level: Of MatMulNBits: least precision of its input, 1 for float32, 2 for float16, 3 for bfloat16, 4
            for int8; 0 leaves the choice to onnxruntime.
        activations: Element type of calibrated activations. Unsigned types have a zero point of their own; signed ones
            are symmetric, their zero point is 0.
        activation_granularity: Under `dynamic-int8`, one scale for an activation as a whole, or one for every row:
            for what one sum of a MatMul, a Gemm or a Conv along one axis goes over. `auto` is the whole activation,
            unless the scheme is `auto` too and rows are clearly faster than float.
        domain: Operator set of QuantizeLinear and DequantizeLinear. Those of `com.microsoft` have scales along an axis
            and 16-bit codes whatever the model's opset of `ai.onnx` is. An LSTM that computes in 8 bit is found in
            `com.microsoft` only.
        bias: The bias of a static integer product: int32 at the scale of the sum, or left in float.
        integer_conv: Whether `dynamic-int8` may turn a Conv into ConvInteger.
        ranges: How the range of an activation is chosen from its statistics; `auto` is from the least to the greatest
            value, or by the error at the outputs of its readers where samples show that it gains.
        headroom: What both ends of a range are multiplied by, where samples differ in how far they go: room for others.
            With `ranges = "auto"`, what samples show to be best comes on top.
        percentile: For `ranges = "percentile"`: how much of the distribution the range covers, in percent.
        kv_cache: Type of caches of keys and values among the inputs and outputs of GroupQueryAttention; int8 has a
            scale for each channel of each head.
        reduce_range: Whether weights get 7 bits where products of 8 could saturate on an x86 processor without VNNI.
        smoothing: Whether channels of outliers may be rescaled, which leaves the float function as it is.
        rounding: Weights to nearest, or so that the layer's output changes least on what the samples show.
        prefix_correction: Whether a weight in blocks with zero points may compensate for the error of quantized layers
            before it.
        bias_correction: Whether the mean errors of a layer's outputs may be taken out of its bias.
        return_to_float: Whether `auto` may return nodes to float that cost more accuracy than they save time.

    """

    name: SchemeName = "auto"
    target: str = DEFAULT
    granularity: Granularity = "channel"
    form: WrittenForm = "cast-mul"
    activations: ActivationType = "uint8"
    activation_granularity: ActivationGranularity = "auto"
    domain: Domain = "ai.onnx"
    block_size: Literal[0, 16, 32, 64, 128, 256] = 0
    zero_points: bool = False
    head_bits: Literal[0, 2, 4, 8] = 0
    mixed_bits: bool = False
    mean_bits: Literal[0, 3] = 0
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    bias: Literal["int32", "float"] = "int32"
    integer_conv: bool = False
    ranges: RangesSetting = "auto"
    headroom: float = 1.0
    percentile: float = 99.999
    rounding: Literal["nearest", "output-error"] = "output-error"
    kv_cache: Literal["float", "int8"] = "float"
    reduce_range: bool = False
    smoothing: bool = True
    prefix_correction: bool = True
    bias_correction: bool = True
    return_to_float: bool = True

    @property
    def bits(self) -> int:
        """Width of the codes of activations."""
        return 16 if self.activations in ("uint16", "int16") else 8

    @property
    def weight_bits(self) -> int:
        """Width of the codes of weights."""
        return WEIGHT_BITS.get(self.name, 8)

    @property
    def symmetric(self) -> bool:
        """Whether activations have zero point 0."""
        return self.activations in ("int8", "int16")

    @property
    def domain_name(self) -> str:
        """The domain as nodes have it: empty for `ai.onnx`."""
        return "" if self.domain == "ai.onnx" else self.domain

    def pair_opset(self, *, activation: bool = False, weight: bool = False) -> int:
        """Return the opset of `ai.onnx` in which QuantizeLinear and DequantizeLinear do what is asked of them.

        Args:
            activation: They are to carry activations, of the type that the scheme says.
            weight: They are to carry weights, with scales along an axis if the granularity is "channel".

        """
        if weight and (self.block_size or self.weight_bits < 8) and self.name.startswith("weight-"):
            return 21
        if self.domain != "ai.onnx":  # QLinearConv, which onnxruntime makes of pairs of either domain, is of opset 10
            return 10 if activation else 1
        if activation and self.bits > 8:
            return 21
        return 13 if weight and self.granularity == "channel" else 10
