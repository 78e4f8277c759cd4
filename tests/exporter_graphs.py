"""Random float graphs, written as exporters write them: for rewrites that recognise what several nodes compute.

A function such as LayerNormalization has many spellings. Axes are an attribute or an input, negative or not. Sizes are
kept or not. Constants stand on either side and have axes of size 1. An idiom draws one spelling for the operator set
at hand. Each node is run in onnxruntime when it is drawn, so that the shapes of all values are known. An idiom that
onnxruntime refuses, or that gives numbers too large, is taken back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from helpers import ALL, NONE, run
from onnx import TensorProto, helper, numpy_helper

OPSETS = (9, 11, 12, 13, 14, 17, 18, 20, 21, 23)
SHAPES = ((2, 8, 4, 6), (1, 6, 4, 4), (3, 4, 6), (2, 5, 8), (2, 8), (1, 4, 2, 6), (2, 8, 6), (2, 6, 64))
MOST_ELEMENTS = 20_000
MOST, LEAST = 1e4, 1e-3  # of the largest element: above it float32 rounds coarsely, below it may be all rounding
Idiom = Callable[["Drawing", str], str]
IDIOMS: list[Idiom] = []


class Refused(Exception):
    """An idiom does not fit the value, or onnxruntime refuses it."""


def idiom(function: Idiom) -> Idiom:
    """Have `draw` choose this one, too: from a drawing and a value to the name of a new value."""
    IDIOMS.append(function)
    return function


class Drawing:
    """A graph that grows, with the number behind each of its values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.random.choice(OPSETS)
        self.type = np.dtype(self.random.choice([np.float32] * 8 + [np.float16, np.float64]))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {"x": self.floats(*self.random.choice(SHAPES))}
        self.count = 0

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def need(self, holds: bool) -> None:
        """Take the idiom back if this does not hold."""
        if not holds:
            raise Refused

    def floats(self, *shape: int) -> np.ndarray:
        return np.asarray(self.numbers.standard_normal(shape), self.type)

    def constant(self, array: Any) -> str:
        """Add a constant; a Python float takes the type of the graph, an int or a list of them int64."""
        array = np.asarray(array, self.type if isinstance(array, float) else None)
        name = self._fresh("c")
        self.constants[name] = array
        return name

    def shape(self, name: str) -> list[int]:
        return list(self.values[name].shape)

    def axis(self, of: int) -> int:
        return self.random.randrange(of)

    def signed(self, axis: int, rank: int) -> int:
        """The same axis, counted from the end now and then."""
        return axis - rank if self.opset >= 11 and self.chance(0.3) else axis

    def broadcastable(self, shape: list[int]) -> list[int]:
        """A shape that broadcasts to this one, with or without leading ones."""
        made = [size if self.chance(0.5) else 1 for size in shape]
        while made and made[0] == 1 and self.chance(0.6):
            made = made[1:]
        return made

    def add(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node with one output."""
        return self.outputs(op_type, inputs, 1, **attributes)[0]

    def outputs(self, op_type: str, inputs: list[str], count: int, **attributes: Any) -> list[str]:
        """Append a node, run it, and give its outputs.

        Raises:
            Refused: onnxruntime does not run it, or numbers are too large or too many.

        """
        names = [self._fresh("v") for _ in range(count)]
        label = self._fresh("node") if self.chance(0.9) else ""
        try:
            made = helper.make_node(op_type, inputs, names, name=label, **attributes)
        except ValueError as error:  # an attribute is an empty list
            raise Refused from error
        found = self._run(made)
        for array in found:
            self.need(array.size <= MOST_ELEMENTS and array.size > 0)
            if array.dtype.kind == "f":
                largest = float(np.abs(array).max(initial=0))  # NaN and infinity are refused, too
                self.need(largest == 0 or LEAST <= largest <= MOST)
        self.nodes.append(made)
        self.values.update(zip(names, found, strict=True))
        return names

    def along(self, op_type: str, value: str, axes: list[int], since: int = 13, **attributes: Any) -> str:
        """Append a node whose axes are an attribute before an operator set, and an input from it on."""
        rank = len(self.shape(value)) + (len(axes) if op_type == "Unsqueeze" else 0)
        self.need(all(0 <= axis < rank for axis in axes))
        axes = [self.signed(axis, rank) for axis in axes]
        if self.opset >= since:
            return self.add(op_type, [value, self.constant(axes)], **attributes)
        return self.add(op_type, [value], axes=axes, **attributes)

    def mean(self, value: str, axes: list[int], keepdims: int = 1, op_type: str = "ReduceMean") -> str:
        since = 13 if op_type == "ReduceSum" else 18
        return self.along(op_type, value, axes, since, keepdims=keepdims)

    def split(self, value: str, sizes: list[int], axis: int) -> list[str]:
        if self.opset >= 13:
            axis = self.signed(axis, len(self.shape(value)))
            return self.outputs("Split", [value, self.constant(sizes)], len(sizes), axis=axis)
        return self.outputs("Split", [value], len(sizes), axis=axis, split=sizes)

    def clip(self, value: str, low: float, high: float) -> str:
        if self.opset >= 11:
            return self.add("Clip", [value, self.constant(low), self.constant(high)])
        return self.add("Clip", [value], min=low, max=high)

    def swapped(self, *inputs: str) -> list[str]:
        """Inputs of an operator that commutes, in either order."""
        return list(inputs[::-1] if self.chance(0.4) else inputs)

    def _fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def _run(self, node: onnx.NodeProto) -> list[np.ndarray]:
        """Run one node on the values at hand, constants as they will be."""
        read = dict.fromkeys(_reads(node))
        feeds = {name: self.values[name] for name in read if name in self.values}
        inputs = [_info(name, array) for name, array in feeds.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        constants = [numpy_helper.from_array(self.constants[name], name) for name in read if name in self.constants]
        graph = helper.make_graph([node], "one", inputs, outputs, constants)
        try:
            return run(self._model(graph).SerializeToString(), feeds)
        except Exception as error:
            raise Refused from error

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8 if self.opset < 21 else 10
        )

    def model(self) -> onnx.ModelProto:
        """The whole graph; sizes of its input may be open, and some inner values are outputs as well."""
        read = {name for node in self.nodes for name in _reads(node)}
        made = [name for node in self.nodes for name in node.output]
        ends = [name for name in made if name not in read]
        if self.chance(0.3):
            ends = list(dict.fromkeys([*ends, self.random.choice(made)]))
        sizes: list[Any] = self.shape("x")
        if self.chance(0.5):
            sizes = [f"size{axis}" if axis == 0 or self.chance(0.3) else size for axis, size in enumerate(sizes)]
        given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(self.type), sizes)
        outputs = [onnx.ValueInfoProto(name=name) for name in ends]
        for output in outputs:
            array = self.values[output.name]
            output.CopyFrom(_info(output.name, array, [f"{output.name}_{axis}" for axis in range(array.ndim)]))
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in read]
        return self._model(helper.make_graph(self.nodes, "drawn", [given], outputs, constants))


def _reads(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads, from outside of its bodies as well."""
    inner = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    names = [name for name in node.input if name]
    for body in inner:
        names += [name for one in body.node for name in _reads(one)]
    return names


def _info(name: str, array: np.ndarray, shape: list[str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape or array.shape)


def draw(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
    """Draw a model and what to feed it; None if what was drawn does not run as a whole."""
    drawing = Drawing(seed)
    for _ in range(drawing.random.randint(3, 12)):
        floats = [name for name, array in drawing.values.items() if array.dtype == drawing.type and array.ndim]
        before = len(drawing.nodes), dict(drawing.values)
        try:
            drawing.random.choice(IDIOMS)(drawing, drawing.random.choice(floats[-3:]))
        except Refused:
            del drawing.nodes[before[0] :]
            drawing.values = before[1]
    if not drawing.nodes:
        return None
    made, feeds = drawing.model(), {"x": drawing.values["x"]}
    try:
        for level in (NONE, ALL):
            run(made.SerializeToString(), feeds, level)
    except Exception:  # onnxruntime fails on a few of these graphs, such as an If of a constant behind two Casts
        return None
    return made, feeds


# Layout


@idiom
def transposes(d: Drawing, x: str) -> str:
    """One Transpose, or two with an axis between them."""
    x = d.add("Transpose", [x], perm=d.random.sample(range(len(d.shape(x))), len(d.shape(x))))
    if d.chance(0.5):
        return x
    if d.chance(0.5):
        x = d.along("Unsqueeze", x, [d.axis(len(d.shape(x)) + 1)])
    return d.add("Transpose", [x], perm=d.random.sample(range(len(d.shape(x))), len(d.shape(x))))


@idiom
def reshape(d: Drawing, x: str) -> str:
    """Sizes copied with 0, inferred with -1, or written out."""
    shape = d.shape(x)
    ways = [[shape[0], -1], [0, -1], [-1, shape[-1]], [-1], [0] * len(shape), shape, [*shape[:-1], -1], [1, -1]]
    if len(shape) > 2:
        ways += [[shape[0], shape[1] * shape[2], *shape[3:]], [0, -1, *shape[3:]], [0, 0, -1]]
    if shape[-1] % 2 == 0:
        ways += [[*[0] * (len(shape) - 1), 2, -1], [-1, *shape[1:-1], 2, shape[-1] // 2]]
    return d.add("Reshape", [x, d.constant(d.random.choice(ways))])


@idiom
def reshape_by_shape(d: Drawing, x: str) -> str:
    """A size that the graph computes, as PyTorch exports `view(x.size(0), -1)`."""
    axis = d.axis(len(d.shape(x)))
    index = d.pick(axis, [axis])
    size = d.add("Gather", [d.add("Shape", [x]), d.constant(index)])
    size = size if isinstance(index, list) else d.along("Unsqueeze", size, [0])
    return d.add("Reshape", [x, d.add("Concat", [size, d.constant([-1])], axis=0)])


@idiom
def flatten(d: Drawing, x: str) -> str:
    return d.add("Flatten", [x], axis=d.signed(d.axis(len(d.shape(x)) + 1), len(d.shape(x))))


@idiom
def unsqueeze(d: Drawing, x: str) -> str:
    return d.along("Unsqueeze", x, [d.axis(len(d.shape(x)) + 1)])


@idiom
def squeeze(d: Drawing, x: str) -> str:
    ones = [axis for axis, size in enumerate(d.shape(x)) if size == 1]
    d.need(bool(ones))
    return d.along("Squeeze", x, d.random.sample(ones, 1))


@idiom
def slices(d: Drawing, x: str) -> str:
    """Negative bounds, bounds beyond the end, steps, and steps backwards."""
    axis, size = d.axis(len(d.shape(x))), d.shape(x)
    start, end, step = (
        d.pick(0, 1, -1, -100, 2),
        d.pick(2**31 - 1, 2**63 - 1, size[axis], -1, 100, 1),
        d.pick(1, 1, 2, -1),
    )
    if step < 0:
        start, end = d.pick((-1, -100), (100, -(2**31)), (2, 0))
    if d.opset < 10:
        return d.add("Slice", [x], starts=[start], ends=[end], axes=[axis])
    given = [[start], [end], [d.signed(axis, len(size))], [step]]
    return d.add("Slice", [x, *map(d.constant, given if step != 1 or d.chance(0.4) else given[:3])])


@idiom
def concat_and_split(d: Drawing, x: str) -> str:
    """Parts that are joined and cut again, at the same places or others."""
    axis, shape = d.axis(len(d.shape(x))), d.shape(x)
    likes = [name for name, array in d.values.items() if array.dtype == d.type and array.shape == tuple(shape)]
    joined = d.add("Concat", [x, d.random.choice(likes)], axis=d.signed(axis, len(shape)))
    if d.chance(0.5):
        return joined
    whole = 2 * shape[axis]
    parts = d.split(joined, d.pick([shape[axis]] * 2, [1, whole - 1]), axis)
    return d.random.choice(parts)


@idiom
def split_and_concat(d: Drawing, x: str) -> str:
    axis, shape = d.axis(len(d.shape(x))), d.shape(x)
    d.need(shape[axis] > 1)
    first = d.random.randint(1, shape[axis] - 1)
    parts = d.split(x, [first, shape[axis] - first], axis)
    return d.add("Concat", d.random.sample(parts, 2), axis=axis)


@idiom
def gather(d: Drawing, x: str) -> str:
    axis, shape = d.axis(len(d.shape(x))), d.shape(x)
    least = -shape[axis] if d.opset >= 11 else 0
    chosen = np.asarray(d.numbers.integers(least, shape[axis], size=d.pick((), (2,), (1,), (2, 2))), np.int64)
    return d.add("Gather", [x, d.constant(chosen)], axis=d.signed(axis, len(shape)))


@idiom
def pad(d: Drawing, x: str) -> str:
    sizes = [d.pick(0, 0, 1) for _ in range(2 * len(d.shape(x)))]
    mode, value = d.pick("constant", "constant", "edge"), d.pick(0.0, 0.0, 1.0)
    if d.opset < 11:
        return d.add("Pad", [x], pads=sizes, mode=mode, value=value)
    given = [d.constant(value)] if d.chance(0.6) else []
    return d.add("Pad", [x, d.constant(sizes), *given], mode=mode)


@idiom
def expand(d: Drawing, x: str) -> str:
    return d.add("Expand", [x, d.constant([d.pick(1, 3) if size == 1 else d.pick(1, size) for size in d.shape(x)])])


@idiom
def tile(d: Drawing, x: str) -> str:
    return d.add("Tile", [x, d.constant([d.pick(1, 1, 2) for _ in d.shape(x)])])


@idiom
def channel_shuffle(d: Drawing, x: str) -> str:
    shape = d.shape(x)
    d.need(len(shape) == 4 and shape[1] % 2 == 0)
    x = d.add("Reshape", [x, d.constant([d.pick(-1, shape[0]), 2, shape[1] // 2, *shape[2:]])])
    x = d.add("Transpose", [x], perm=[0, 2, 1, 3, 4])
    return d.add("Reshape", [x, d.constant([d.pick(-1, 0), *shape[1:]])])


@idiom
def depth_to_space(d: Drawing, x: str) -> str:
    return d.add("DepthToSpace", [x], blocksize=2, **({"mode": d.pick("DCR", "CRD")} if d.opset >= 11 else {}))


@idiom
def cast(d: Drawing, x: str) -> str:
    """To another type and back, or to its own."""
    own = helper.np_dtype_to_tensor_dtype(d.type)
    return d.add("Cast", [d.add("Cast", [x], to=d.pick(own, TensorProto.DOUBLE, TensorProto.FLOAT16))], to=own)


@idiom
def nothing(d: Drawing, x: str) -> str:
    return d.add(d.pick("Identity", "Dropout"), [x])


# Elementwise


@idiom
def with_constant(d: Drawing, x: str) -> str:
    """A constant on either side, of fewer axes or of more, and sometimes neutral."""
    op_type, shape = d.pick("Mul", "Add", "Sub", "Div"), d.broadcastable(d.shape(x))
    if d.chance(0.1):
        shape = [*[1] * (len(d.shape(x)) + 1 - len(shape)), *shape]
    value = d.floats(*shape)
    if d.chance(0.15):
        value = np.full_like(value, op_type in ("Mul", "Div"))
    if op_type == "Div":
        value = np.where(np.abs(value) < 0.2, d.type.type(1), value)
        return d.add(op_type, [x, d.constant(value)])
    return d.add(op_type, d.swapped(x, d.constant(value)))


@idiom
def two_scalars(d: Drawing, x: str) -> str:
    """Factors and terms in a row, around a function or not."""
    x = d.add(d.pick("Div", "Mul"), [x, d.constant(d.pick(2.0, 0.5, 3.0))])
    x = d.add("Tanh", [x]) if d.chance(0.5) else x
    x = d.add("Add", d.swapped(x, d.constant(np.ones(d.pick((), (1,), (1, 1)), d.type))))
    return d.add("Mul", d.swapped(x, d.constant(0.5)))


@idiom
def of_two_values(d: Drawing, x: str) -> str:
    shape = d.values[x].shape
    likes = [name for name, array in d.values.items() if array.dtype == d.type and array.shape == shape]
    return d.add(d.pick("Add", "Mul", "Sub", "Sum", "Max", "Min"), [x, d.random.choice(likes)])


@idiom
def function(d: Drawing, x: str) -> str:
    names = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Exp", "Abs", "Neg", "Erf", "Elu", "Softplus"]
    return d.add(d.random.choice(names), [x])


@idiom
def silu(d: Drawing, x: str) -> str:
    return d.add("Mul", d.swapped(x, d.add("Sigmoid", [x])))


@idiom
def hard_swish(d: Drawing, x: str) -> str:
    gate = d.clip(d.add("Add", d.swapped(x, d.constant(3.0))), 0.0, 6.0)
    if d.chance(0.5):
        return d.add("Mul", d.swapped(x, d.add("Div", [gate, d.constant(6.0)])))
    return d.add("Div", [d.add("Mul", d.swapped(x, gate)), d.constant(6.0)])


@idiom
def gelu(d: Drawing, x: str) -> str:
    inner = d.add("Div", [x, d.constant(2**0.5)]) if d.chance(0.5) else d.add("Mul", [x, d.constant(0.5**0.5)])
    gate = d.add("Add", d.swapped(d.add("Erf", [inner]), d.constant(1.0)))
    if d.chance(0.5):
        return d.add("Mul", d.swapped(d.add("Mul", d.swapped(x, gate)), d.constant(0.5)))
    return d.add("Mul", d.swapped(d.add("Mul", d.swapped(x, d.constant(0.5))), gate))


@idiom
def clip(d: Drawing, x: str) -> str:
    if d.opset < 11:
        return d.add("Clip", [x], **d.pick({}, {"min": 0.0}, {"max": 1.0}, {"min": -1.0, "max": 1.0}))
    bounds = d.pick(("",), (-1.0,), ("", 1.0), (-0.5, 0.5), (-np.inf, np.inf), (0.5, -0.5))
    return d.add("Clip", [x, *(bound if isinstance(bound, str) else d.constant(float(bound)) for bound in bounds)])


@idiom
def where(d: Drawing, x: str) -> str:
    """Of a constant condition, or as a leaky ReLU."""
    if d.chance(0.4):
        slope = d.constant(d.floats(*d.pick((), (1,), [1] * len(d.shape(x)))))
        return d.add("Where", [d.add("Greater", [x, d.constant(0.0)]), x, d.add("Mul", [x, slope])])
    condition = d.constant(d.numbers.random(tuple(d.broadcastable(d.shape(x)))) < 0.5)
    other = d.constant(d.floats(*d.broadcastable(d.shape(x))))
    return d.add("Where", [condition, *d.swapped(x, other)])


@idiom
def prelu(d: Drawing, x: str) -> str:
    shape = d.shape(x)
    slopes = d.pick([1], [1] * len(shape), [shape[1], *[1] * (len(shape) - 2)] if len(shape) > 1 else [1])
    return d.add("PRelu", [x, d.constant(d.floats(*slopes))])


@idiom
def power(d: Drawing, x: str) -> str:
    return d.add("Pow", [d.add("Abs", [x]), d.constant(d.pick(1.0, 2.0, 0.5, 3.0))])


# Reductions and normalisation


@idiom
def reduction(d: Drawing, x: str) -> str:
    rank = len(d.shape(x))
    axes = sorted(d.random.sample(range(rank), d.random.randint(1, rank)))
    return d.mean(x, axes, d.pick(0, 1), d.pick("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"))


@idiom
def softmax(d: Drawing, x: str) -> str:
    """Softmax as an operator, or written out."""
    axis = d.axis(len(d.shape(x)))
    if d.chance(0.6):
        return d.add(d.pick("Softmax", "LogSoftmax"), [x], axis=d.signed(axis, len(d.shape(x))))
    raised = d.add("Exp", [d.add("Sub", [x, d.mean(x, [axis], 1, "ReduceMax")])])
    return d.add("Div", [raised, d.mean(raised, [axis], 1, "ReduceSum")])


def standardized(d: Drawing, x: str, axes: list[int]) -> str:
    """Values less their mean, divided by their deviation, in one of many spellings."""
    keep = int(d.chance(0.7))
    kept = (lambda value: value) if keep else (lambda value: d.along("Unsqueeze", value, axes))
    centred = d.add("Sub", [x, kept(d.mean(x, axes, keep))])
    squared = d.add("Mul", [centred, centred]) if d.chance(0.5) else d.add("Pow", [centred, d.constant(2.0)])
    variance = d.mean(squared, axes, keep)
    epsilon = d.constant(np.full(d.pick((), (1,)), 1e-3, d.type))
    root = kept(d.add("Sqrt", [d.add("Add", d.swapped(variance, epsilon))]))
    if d.chance(0.3):
        return d.add("Mul", d.swapped(centred, d.add("Reciprocal", [root])))
    return d.add("Div", [centred, root])


def with_scale_and_bias(d: Drawing, x: str, shape: list[int]) -> str:
    x = d.add("Mul", d.swapped(x, d.constant(d.floats(*shape)))) if d.chance(0.7) else x
    return d.add("Add", d.swapped(x, d.constant(d.floats(*shape)))) if d.chance(0.7) else x


@idiom
def layer_normalization(d: Drawing, x: str) -> str:
    """Over the last axes, as frameworks do, or over any."""
    rank = len(d.shape(x))
    count = d.random.randint(1, min(2, rank))
    axes = list(range(rank - count, rank))
    if d.chance(0.3):
        axes = sorted(d.random.sample(range(rank), count))
    x = standardized(d, x, axes)
    return with_scale_and_bias(d, x, d.shape(x)[-count:] if d.chance(0.7) else d.broadcastable(d.shape(x)))


@idiom
def rms_normalization(d: Drawing, x: str) -> str:
    squares = d.mean(d.add("Pow", [x, d.constant(2.0)]), [len(d.shape(x)) - 1])
    root = d.add("Sqrt", [d.add("Add", [squares, d.constant(1e-3)])])
    if d.chance(0.5):
        x = d.add("Mul", d.swapped(x, d.add("Reciprocal", [root])))
    else:
        x = d.add("Div", [x, root])
    return with_scale_and_bias(d, x, d.shape(x)[-1:])


@idiom
def instance_normalization(d: Drawing, x: str) -> str:
    shape = d.shape(x)
    d.need(len(shape) > 2)
    ones = [1] * (len(shape) - 2)
    made = standardized(d, x, list(range(2, len(shape))))
    return with_scale_and_bias(d, made, d.pick([shape[1], *ones], [1], [1, shape[1], *ones], [1, 1, shape[1], *ones]))


@idiom
def group_normalization(d: Drawing, x: str) -> str:
    """Groups of channels as instances, as PyTorch exports it."""
    shape = d.shape(x)
    d.need(len(shape) > 2 and shape[1] % 2 == 0)
    groups = d.add("Reshape", [x, d.constant([0, 2, -1])])
    scale, bias = d.constant(np.ones(2, d.type)), d.constant(np.zeros(2, d.type))
    made = d.add("InstanceNormalization", [groups, scale, bias], epsilon=1e-3)
    made = d.add("Reshape", [made, d.pick(d.constant(shape), d.add("Shape", [x]))])
    return with_scale_and_bias(d, made, [shape[1], *[1] * (len(shape) - 2)])


def batch_normalization(d: Drawing, x: str) -> str:
    d.need(len(d.shape(x)) > 1)
    channels = d.shape(x)[1]
    spread = np.abs(d.floats(channels)) + d.type.type(0.5)
    return d.add("BatchNormalization", [x, *(d.constant(d.floats(channels)) for _ in range(3)), d.constant(spread)])


idiom(batch_normalization)

# Products


def convolution(d: Drawing, x: str) -> str:
    """A Conv that keeps sizes, with groups, or with padding by name."""
    shape = d.shape(x)
    d.need(len(shape) in (3, 4) and shape[1] <= 64)
    groups = d.pick(*(count for count in (1, 1, 2, shape[1]) if shape[1] % count == 0))
    kernel = [d.pick(1, 3) for _ in shape[2:]]
    inputs = [x, d.constant(d.floats(shape[1], shape[1] // groups, *kernel) * d.type.type(0.3))]
    inputs += [d.constant(d.floats(shape[1]))] if d.chance(0.6) else []
    padding = (
        {"auto_pad": d.pick("SAME_UPPER", "SAME_LOWER")}
        if d.chance(0.3)
        else {"pads": [size // 2 for size in kernel] * 2}
    )
    return d.add("Conv", inputs, kernel_shape=kernel, group=groups, **padding)


idiom(convolution)


@idiom
def parallel_convolutions(d: Drawing, x: str) -> str:
    """Two branches that are added, as RepVGG trains them."""
    other = convolution(d, x) if d.chance(0.7) else batch_normalization(d, x)
    return d.add(d.pick("Add", "Add", "Sub"), d.swapped(convolution(d, x), other))


@idiom
def transposed_convolution(d: Drawing, x: str) -> str:
    d.need(len(d.shape(x)) == 4)
    stride, kernel = d.pick(1, 2), d.pick(2, 3, 4)
    padding = d.pick(0, 1) if kernel > 2 else 0
    weight = d.constant(d.floats(d.shape(x)[1], 3, kernel, kernel) * d.type.type(0.3))
    bias = [d.constant(d.floats(3))] if d.chance(0.5) else []
    return d.add("ConvTranspose", [x, weight, *bias], strides=[stride] * 2, pads=[padding] * 4)


@idiom
def pool(d: Drawing, x: str) -> str:
    d.need(len(d.shape(x)) == 4)
    if d.chance(0.3):
        return d.add("GlobalAveragePool", [x]) if d.chance(0.5) else d.mean(x, [2, 3], d.pick(0, 1))
    op_type = d.pick("MaxPool", "AveragePool")
    given: dict[str, Any] = d.pick({}, {"pads": [1] * 4}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"})
    if d.opset >= 10 and d.chance(0.4):
        given["ceil_mode"] = 1
    if op_type == "AveragePool" and d.chance(0.4):
        given["count_include_pad"] = 1
    return d.add(op_type, [x], kernel_shape=[2, 3], strides=[d.pick(1, 2), d.pick(1, 2)], **given)


def product(d: Drawing, x: str, columns: int) -> str:
    rows = d.shape(x)[-1]
    return d.add("MatMul", [x, d.constant(d.floats(rows, columns) / d.type.type(rows**0.5))])


@idiom
def matrix_product(d: Drawing, x: str) -> str:
    x = product(d, x, d.pick(2, d.shape(x)[-1], 64))
    return with_scale_and_bias(d, x, d.pick([d.shape(x)[-1]], [1], [1, d.shape(x)[-1]])) if d.chance(0.6) else x


@idiom
def gemm(d: Drawing, x: str) -> str:
    d.need(len(d.shape(x)) == 2)
    across, over = d.pick(0, 0, 1), d.pick(0, 1)
    rows, inner = d.shape(x)[:: -1 if across else 1]
    columns = d.pick(4, 64)
    weight = d.floats(*((columns, inner) if over else (inner, columns))) * d.type.type(0.3)
    inputs = [x, d.constant(weight)]
    if d.opset < 11 or d.chance(0.6):
        inputs.append(d.constant(d.floats(*d.pick([columns], [1, columns], [rows, 1], [1], [rows, columns]))))
    factors = {name: value for name, value in (("alpha", 0.5), ("beta", 2.0)) if d.chance(0.3)}
    return d.add("Gemm", inputs, transA=across, transB=over, **factors)


@idiom
def einsum(d: Drawing, x: str) -> str:
    d.need(d.opset >= 12 and len(d.shape(x)) in (2, 3, 4))
    read = "abcd"[: len(d.shape(x))]
    last, rest = read[-1], read[:-1]
    weight, made = d.pick(
        (f"{last}e", f"{rest}e"), (f"e{last}", f"{rest}e"), (f"{last}e", f"e{rest}"), (f"{last}ef", f"{rest}ef")
    )
    sizes = dict(zip(read, d.shape(x), strict=True), e=3, f=2)
    return d.add(
        "Einsum", [x, d.constant(d.floats(*(sizes[letter] for letter in weight)))], equation=f"{read},{weight}->{made}"
    )


@idiom
def product_and_batch_normalization(d: Drawing, x: str) -> str:
    shape = d.shape(x)
    d.need(len(shape) in (2, 3))
    x = product(d, x, 6)
    x = d.add("Reshape", [x, d.constant([-1, 6])]) if d.chance(0.7) else d.add("Flatten", [x], axis=len(shape) - 1)
    return d.add("Reshape", [batch_normalization(d, x), d.constant([*shape[:-1], 6])])


@idiom
def attention(d: Drawing, x: str) -> str:
    """Of a value to itself, with an added mask, guarded against rows that are masked whole."""
    d.need(len(d.shape(x)) == 3)
    length = d.shape(x)[1]
    scores = d.add("MatMul", [x, d.add("Transpose", [x], perm=[0, 2, 1])])
    scores = d.add("Mul", d.swapped(scores, d.constant(0.1)))
    if d.chance(0.5):
        hidden = d.numbers.random(d.pick((1, 1, length), (length, length), (1, length, length))) < 0.3
        mask = d.constant(np.where(hidden, d.type.type(-MOST), d.type.type(0)))
        scores = d.add("Add", d.swapped(scores, mask))
    shares = d.add("Softmax", [scores], axis=2)
    if d.chance(0.4):
        shares = d.add("Where", [d.add("IsNaN", [shares]), d.constant(0.0), shares])
    return d.add("MatMul", [shares, x])


@idiom
def fused_projections(d: Drawing, x: str) -> str:
    """Query, key and value by one product, taken apart by Split, by Gather or head by head."""
    d.need(len(d.shape(x)) == 3)
    x = with_scale_and_bias(d, product(d, x, 96), [96]) if d.chance(0.6) else product(d, x, 96)
    way = d.pick("split", "gather", "heads")
    if way == "split":
        parts = d.split(x, [32] * 3, 2)
    elif way == "gather":
        x = d.add("Transpose", [d.add("Reshape", [x, d.constant([0, 0, 3, 4, 8])])], perm=[2, 0, 3, 1, 4])
        parts = [d.add("Gather", [x, d.constant(index)], axis=0) for index in range(3)]
    else:
        x = d.add("Reshape", [x, d.constant([0, -1, 4, 24])])
        parts = d.split(d.add("Transpose", [x], perm=d.pick([0, 2, 1, 3], [2, 0, 1, 3])), [8] * 3, 3)
    return d.add("Mul", [d.add("Add", parts[:2]), parts[2]])


@idiom
def embedding(d: Drawing, x: str) -> str:
    """Rows of a table, a function of them, and a product."""
    sizes = d.add("Shape", [x])
    which = d.constant(d.numbers.integers(0, len(d.shape(x)), size=d.pick((1,), (2,), (2, 2))))
    rows = d.add("Gather", [d.constant(d.floats(70, 4)), d.add("Gather", [sizes, which])])
    rows = d.add(d.pick("Relu", "Tanh", "Sigmoid", "Floor", "Abs"), [rows])
    rows = d.add(d.pick("Mul", "Add"), [rows, d.constant(d.floats(*d.pick((4,), (1,), (), (1, 4), (1, 1, 4))))])
    return product(d, rows, 4) if d.chance(0.5) else rows


@idiom
def one_hot(d: Drawing, x: str) -> str:
    """A comparison with all classes, as a product."""
    places = d.along("Unsqueeze", d.add("Shape", [x]), [1])
    hits = d.add(
        "Cast", [d.add("Equal", [places, d.constant(np.arange(8))])], to=helper.np_dtype_to_tensor_dtype(d.type)
    )
    return product(d, hits, 4)


# Bodies and recurrence


@idiom
def recurrent(d: Drawing, x: str) -> str:
    """An LSTM or a GRU, forwards, backwards or both, with its results taken apart."""
    d.need(len(d.shape(x)) == 3)
    op_type, direction = d.pick("LSTM", "GRU"), d.pick("forward", "reverse", "bidirectional")
    ways, gates, hidden = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3}[op_type], 8
    shapes = [(ways, gates * hidden, d.shape(x)[-1]), (ways, gates * hidden, hidden)]
    shapes += [(ways, 2 * gates * hidden)] if d.chance(0.7) else []
    weights = [d.constant(d.floats(*shape) * d.type.type(0.3)) for shape in shapes]
    made = d.add(op_type, [x, *weights], hidden_size=hidden, direction=direction)
    if ways == 1:
        return d.along("Squeeze", made, [1])
    return d.add("Reshape", [d.add("Transpose", [made], perm=[0, 2, 1, 3]), d.constant([0, 0, -1])])


@idiom
def branch(d: Drawing, x: str) -> str:
    """An If on a constant or on what the graph computes; both branches read the outer value and a weight."""
    condition = d.constant(d.chance(0.5)) if d.chance(0.4) else _some_condition(d, x)
    weight = d.constant(d.floats(d.shape(x)[-1], d.shape(x)[-1]) / d.type.type(d.shape(x)[-1] ** 0.5))
    bodies = {}
    for name, op_type in (("then_branch", "MatMul"), ("else_branch", d.pick("MatMul", "Add"))):
        made = f"{name}{d.count}"
        bodies[name] = helper.make_graph(
            [helper.make_node(op_type, [x, weight if op_type == "MatMul" else x], [made])],
            name, [], [_info(made, d.values[x], ["?"] * len(d.shape(x)))],
        )  # fmt: skip
    return d.add("If", [condition], **bodies)


def _some_condition(d: Drawing, x: str) -> str:
    mean = d.mean(x, list(range(len(d.shape(x)))), 0)
    bound = d.pick(-0.5, 0.5)
    d.need(abs(float(d.values[mean]) - bound) > 0.1)  # the last bit of a rewrite must not decide
    return d.add("Greater", [mean, d.constant(bound)])


@idiom
def loop(d: Drawing, x: str) -> str:
    """A Loop that multiplies its state by an outer weight two or three times."""
    size = d.shape(x)[-1]
    weight, stem = d.constant(d.floats(size, size) / d.type.type(size**0.5)), f"loop{d.count}"
    state = [f"{stem}_dim{axis}" for axis in range(len(d.shape(x)))]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", [f"{stem}_state", weight], [f"{stem}_product"]),
            helper.make_node("Tanh", [f"{stem}_product"], [f"{stem}_next"]),
            helper.make_node("Identity", [f"{stem}_go"], [f"{stem}_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info(f"{stem}_turn", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{stem}_go", TensorProto.BOOL, []),
            _info(f"{stem}_state", d.values[x], state),
        ],
        [helper.make_tensor_value_info(f"{stem}_on", TensorProto.BOOL, []), _info(f"{stem}_next", d.values[x], state)],
    )
    return d.add("Loop", [d.constant(d.pick(2, 3)), d.constant(True), x], body=body)
