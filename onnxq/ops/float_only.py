"""Operators that stay float, with the reason that the plan shows."""

from __future__ import annotations

from onnxq.ops.family import stays_float

stays_float(
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
stays_float("probabilities lose more accuracy in 8 bit than they save time", "Softmax", "LogSoftmax", "Attention")
stays_float(
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
stays_float(
    "masks and elementwise arithmetic around float values stay float",
    "Sub",
    "Div",
    "Where",
    "Max",
    "Min",
    "Sum",
    "Mean",
)
stays_float(
    "it stays float where its neighbours are float",
    *("Add", "Mul", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "LeakyRelu", "Sigmoid", "Clip"),
    *("HardSigmoid", "HardSwish"),
)
stays_float(
    "it moves values from place to place", "Reshape", "Transpose", "Slice", "Expand", "Squeeze", "Unsqueeze", "Flatten"
)
stays_float(
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
stays_float("it changes the element type", "Cast", "CastLike")
