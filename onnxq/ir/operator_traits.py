"""One table of the effects that operators of ai.onnx have on the elements they read.

Passes, cost models and checks ask for a trait by its name. They keep no lists of operators of their own, unless the
list is about a kernel of one runtime. A new operator is written here once.

Tests: `tests/ir/test_operator_traits.py`.
"""

from __future__ import annotations

from enum import Flag, auto
from math import inf

from onnxq.ir.graph import Node, Value

DEPTH = 12  # operators that `is_nonnegative` looks back through


class Trait(Flag):
    """A property that holds for every element type and attribute of an operator.

    Attributes:
        ELEMENTWISE: An element of the result depends on the elements at its place alone.
        BROADCASTS: Elementwise, and its operands are broadcast against each other.
        MOVES: Every element of the result is an element of the first input, unchanged.
        IN_ORDER: Moves all elements, and their order in memory stays: only the shape changes.
        SCALES: f(s·x) = s·f(x) for every s > 0, where x is the first input.
        KINKED: Elementwise, with a derivative that jumps or is zero over a range.
        JUMPS: Kinked, and the result itself jumps: its last bits before decide what comes of it.
        POOLS: A window or a whole map becomes one element between its least and its greatest.
        REDUCES: All elements along some axes become one.

    """

    ELEMENTWISE = auto()
    BROADCASTS = auto()
    MOVES = auto()
    IN_ORDER = auto()
    SCALES = auto()
    KINKED = auto()
    JUMPS = auto()
    POOLS = auto()
    REDUCES = auto()


_NONE = Trait(0)
_UNARY, _BROADCAST = Trait.ELEMENTWISE, Trait.ELEMENTWISE | Trait.BROADCASTS
_STEPS = Trait.KINKED | Trait.JUMPS
_MOVES = Trait.MOVES | Trait.SCALES
_POOLS = Trait.POOLS | Trait.SCALES

TRAITS: dict[str, Trait] = {
    "Abs": _UNARY | Trait.SCALES | Trait.KINKED,
    "Add": _BROADCAST,
    "And": _BROADCAST | _STEPS,
    "AveragePool": _POOLS,
    "Ceil": _UNARY | _STEPS,
    "Celu": _UNARY,
    "Clip": _UNARY | Trait.KINKED,
    "Cos": _UNARY,
    "DepthToSpace": _MOVES,
    "Div": _BROADCAST,
    "Dropout": _UNARY | Trait.SCALES,
    "Elu": _UNARY | Trait.KINKED,
    "Equal": _BROADCAST | _STEPS,
    "Erf": _UNARY,
    "Exp": _UNARY,
    "Expand": _MOVES,
    "Flatten": _MOVES | Trait.IN_ORDER,
    "Floor": _UNARY | _STEPS,
    "Gather": _MOVES,
    "GatherElements": _MOVES,
    "GatherND": _MOVES,
    "Gelu": _UNARY,
    "GlobalAveragePool": _POOLS,
    "GlobalMaxPool": _POOLS,
    "Greater": _BROADCAST | _STEPS,
    "GreaterOrEqual": _BROADCAST | _STEPS,
    "HardSigmoid": _UNARY | Trait.KINKED,
    "HardSwish": _UNARY | Trait.KINKED,
    "Identity": _MOVES | _UNARY | Trait.IN_ORDER,
    "IsInf": _UNARY | _STEPS,
    "IsNaN": _UNARY | _STEPS,
    "LeakyRelu": _UNARY | Trait.SCALES | Trait.KINKED,
    "Less": _BROADCAST | _STEPS,
    "LessOrEqual": _BROADCAST | _STEPS,
    "Log": _UNARY,
    "Max": _BROADCAST | Trait.KINKED,
    "MaxPool": _POOLS,
    "Mean": _BROADCAST,
    "Min": _BROADCAST | Trait.KINKED,
    "Mish": _UNARY,
    "Mod": _BROADCAST | _STEPS,
    "Mul": _BROADCAST,
    "Neg": _UNARY | Trait.SCALES,
    "Not": _UNARY | _STEPS,
    "Or": _BROADCAST | _STEPS,
    "Pow": _BROADCAST,
    "PRelu": _UNARY | Trait.SCALES | Trait.KINKED,
    "Reciprocal": _UNARY,
    "ReduceL1": Trait.REDUCES | Trait.SCALES,
    "ReduceL2": Trait.REDUCES | Trait.SCALES,
    "ReduceLogSum": Trait.REDUCES,
    "ReduceLogSumExp": Trait.REDUCES,
    "ReduceMax": Trait.REDUCES | Trait.SCALES,
    "ReduceMean": Trait.REDUCES | Trait.SCALES,
    "ReduceMin": Trait.REDUCES | Trait.SCALES,
    "ReduceProd": Trait.REDUCES,
    "ReduceSum": Trait.REDUCES | Trait.SCALES,
    "ReduceSumSquare": Trait.REDUCES,
    "Relu": _UNARY | Trait.SCALES | Trait.KINKED,
    "Reshape": _MOVES | Trait.IN_ORDER,
    "ReverseSequence": _MOVES,
    "Round": _UNARY | _STEPS,
    "Selu": _UNARY | Trait.KINKED,
    "Sigmoid": _UNARY,
    "Sign": _UNARY | _STEPS,
    "Sin": _UNARY,
    "Slice": _MOVES,
    "Softplus": _UNARY,
    "Softsign": _UNARY,
    "SpaceToDepth": _MOVES,
    "Split": _MOVES,
    "Sqrt": _UNARY,
    "Squeeze": _MOVES | Trait.IN_ORDER,
    "Sub": _BROADCAST,
    "Sum": _BROADCAST,
    "Tanh": _UNARY,
    "ThresholdedRelu": _UNARY | _STEPS,
    "Tile": _MOVES,
    "Transpose": _MOVES,
    "Unsqueeze": _MOVES | Trait.IN_ORDER,
    "Where": _BROADCAST,
    "Xor": _BROADCAST | _STEPS,
}

# Least and greatest element of a result, whatever is read; from the formulas in the ONNX specification
BOUNDS: dict[str, tuple[float, float]] = {
    "Abs": (0.0, inf),
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Exp": (0.0, inf),
    "HardSigmoid": (0.0, 1.0),
    "LogSoftmax": (-inf, 0.0),
    "ReduceL1": (0.0, inf),
    "ReduceL2": (0.0, inf),
    "ReduceSumSquare": (0.0, inf),
    "Relu": (0.0, inf),
    "Sigmoid": (0.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, inf),
    "Softsign": (-1.0, 1.0),
    "Sqrt": (0.0, inf),
    "Tanh": (-1.0, 1.0),
}


def has(node: Node, trait: Trait) -> bool:
    """Return whether a node is of ai.onnx and has a trait; of several traits, all."""
    return not node.domain and trait in TRAITS.get(node.op_type, _NONE)


def operators_with(trait: Trait) -> frozenset[str]:
    """Return the operators of ai.onnx that have a trait; of several traits, all."""
    return frozenset(name for name, traits in TRAITS.items() if trait in traits)


def is_nonnegative(value: Value, depth: int = DEPTH) -> bool:
    """Return whether no element of a value is negative, as far as the operators that make it tell."""
    node = value.producer
    if node is None or node.domain:
        return False
    if node.op_type in BOUNDS:
        return BOUNDS[node.op_type][0] >= 0
    if node.op_type == "Clip":
        bound = node.constant(1)
        low = node.attribute("min") if bound is None else float(bound.numpy().reshape(()))
        return low is not None and low >= 0
    passes_on = has(node, Trait.MOVES) or has(node, Trait.POOLS) or node.op_type in ("Concat", "Dropout")
    if not passes_on or not depth:
        return False
    sources = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return all(source is not None and is_nonnegative(source, depth - 1) for source in sources)
