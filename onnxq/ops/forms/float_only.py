"""Operators that stay float, with the reason that the plan shows.

Tests: `tests/ops/test_matmul.py`.
"""

from __future__ import annotations

from onnxq.ops.forms.family import register_float_reason

register_float_reason(
    "normalisation loses more accuracy in 8 bit than it saves time",
    *(
        "LayerNormalization",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "LpNormalization",
        "LRN",
    ),
    *("BatchNormalization", "MeanVarianceNormalization"),
)
register_float_reason(
    "probabilities lose more accuracy in 8 bit than they save time", "Softmax", "LogSoftmax", "Attention"
)
register_float_reason(
    "onnxruntime has no fast integer kernel for it",
    *(
        "Tanh",
        "Erf",
        "Gelu",
        "Exp",
        "Log",
        "Sqrt",
        "Reciprocal",
        "Pow",
        "Elu",
        "Selu",
        "Celu",
    ),
    *("Mish", "Softplus", "Softsign", "PRelu", "Swish", "ThresholdedRelu", "Abs", "Neg", "Sin", "Cos"),
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "GlobalMaxPool", "Resize", "Upsample", "Einsum"),
)
register_float_reason(
    "masks and elementwise arithmetic around float values stay float",
    "Sub",
    "Div",
    "Where",
    "Max",
    "Min",
    "Sum",
    "Mean",
)
register_float_reason(
    "neighbours are float",
    *("Add", "Mul", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "LeakyRelu", "Sigmoid", "Clip"),
    *("HardSigmoid", "HardSwish"),
)
register_float_reason(
    "it moves values from place to place", "Reshape", "Transpose", "Slice", "Expand", "Squeeze", "Unsqueeze", "Flatten"
)
register_float_reason(
    "it moves values from place to place",
    "Split",
    "Pad",
    "Tile",
    "Identity",
    "GatherElements",
    "GatherND",
    "DepthToSpace",
    "SpaceToDepth",
)
register_float_reason("it changes the element type", "Cast", "CastLike")
