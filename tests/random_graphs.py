"""Random models of every operator family, with bodies, shared weights, odd shapes and unfriendly names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from helpers import F, floats
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
STEMS = ("x", "/model/layer.0/Conv_output_0", "a:0", "ü ñ", "x_scale", "x_quantized", "zero point", "%", '"', "n" * 300)
MAPS = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Neg", "Abs", "Identity", "Erf", "Softplus")


@dataclass
class Scope:
    """A graph that grows: its nodes, and the values that it can read, outer ones included."""

    draft: Draft
    values: dict[str, Shape]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def add(self, op_type: str, inputs: list[str], *shapes: Shape, **attributes: Any) -> str:
        """Append a node with outputs of these shapes; gives the first."""
        names = [self.draft.fresh() for _ in shapes]
        made = helper.make_node(op_type, inputs, names, **attributes)
        if label := self.draft.node_name():
            made.name = label
        self.nodes.append(made)
        self.values.update(zip(names, shapes, strict=True))
        self.own += names
        return names[0]

    def info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, self.values[name])


class Draft:
    """A random model; what is drawn decides everything."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.weights: dict[str, np.ndarray] = {}
        self.count = 0
        self.stem = self.pick("v", "v", *STEMS)
        self.labels = self.pick("none", "unique", "stem", "none", "unique", "stem", "stem", "same")

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def fresh(self) -> str:
        self.count += 1
        return f"{self.stem}{self.count}" if self.count > 1 or self.stem == "v" else self.stem

    def node_name(self) -> str:
        self.count += 1
        names = {"none": "", "unique": f"node{self.count}", "same": "node", "stem": f"{self.stem}{self.count}"}
        return names[self.labels]

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> str:
        """A float weight, one that is there already half of the time."""
        same = [name for name, array in self.weights.items() if array.shape == shape and array.dtype == F]
        if same and self.pick(True, False):
            return self.pick(*same)
        fan = max(int(np.prod(shape[1:])), 1)
        name = self.fresh() + self.pick("_w", ".weight", "_scale")
        if name in self.weights:
            name += str(len(self.weights))
        self.weights[name] = floats(*shape, seed=len(self.weights), scale=1.4 / fan**0.5)
        return name

    # -- one step -----------------------------------------------------------------------------------------------------

    def grow(self, scope: Scope, depth: int) -> None:
        """Append one step that reads any value."""
        source = self.pick(*scope.values)
        shape = scope.values[source]
        steps = [self.map, self.pair, self.move]
        if len(shape) == 4:
            steps += [self.conv, self.conv, self.conv, self.pool, self.resize, self.transposed_conv, self.normalize]
        elif len(shape) == 3:
            steps += [self.matmul, self.matmul, self.recurrent, self.layer_norm, self.conv]
        elif len(shape) == 2:
            steps += [self.matmul, self.gemm, self.gemm, self.layer_norm]
        if depth and len(shape) >= 2:
            steps += [self.branch, self.loop, self.scan]
        self.pick(*steps)(scope, source, shape, depth)

    def map(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        if self.pick(True, False):
            low, high = self.pick((0.0, 6.0), (-1.0, 1.0), (0.1, 2.0), (None, 0.5), (0.0, None))
            bounds = ["" if bound is None else self.constant(F(bound)) for bound in (low, high)]
            scope.add("Clip", [source, *bounds], shape)
        else:
            scope.add(self.pick(*MAPS), [source], shape)

    def pair(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        same = [name for name, known in scope.values.items() if known == shape]
        other = self.pick(*same, self.weight(*shape[-1:]))
        op_type = self.pick("Add", "Mul", "Sub", "Max", "Concat")
        if op_type != "Concat":
            scope.add(op_type, self.pick([source, other], [other, source]), shape)
        elif other in same and shape:
            axis = self.pick(*range(len(shape)))
            scope.add("Concat", [source, other], (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), axis=axis)

    def move(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        kind = self.pick("Transpose", "Flatten", "Reshape", "Unsqueeze", "Split", "Slice", "Softmax", "ReduceMean")
        if len(shape) < 2:
            return
        if kind == "Transpose":
            perm = self.pick(list(range(len(shape)))[::-1], [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
            scope.add(kind, [source], tuple(shape[axis] for axis in perm), perm=perm)
        elif kind == "Flatten":
            scope.add(kind, [source], (shape[0], int(np.prod(shape[1:]))), axis=1)
        elif kind == "Reshape" and 0 not in shape:
            wanted = (shape[0], int(np.prod(shape[1:-1])), shape[-1])
            scope.add(kind, [source, self.constant(np.int64([shape[0], -1, shape[-1]]))], wanted)
        elif kind == "Unsqueeze" and len(shape) < 4:
            scope.add(kind, [source, self.constant(np.int64([1]))], (shape[0], 1, *shape[1:]))
        elif kind == "Split" and shape[1] > 1:
            parts = (1, shape[1] - 1)
            shapes = [(shape[0], part, *shape[2:]) for part in parts]
            scope.add(kind, [source, self.constant(np.int64(parts))], *shapes, axis=1)
        elif kind == "Slice" and shape[-1] > 1:
            bounds = [self.constant(np.int64([n])) for n in (0, shape[-1] - 1, -1)]
            scope.add(kind, [source, *bounds], (*shape[:-1], shape[-1] - 1))
        elif kind == "Softmax":
            scope.add(kind, [source], shape, axis=self.pick(-1, 1))
        elif kind == "ReduceMean" and 0 not in shape:
            scope.add(kind, [source, self.constant(np.int64([-1]))], (*shape[:-1], 1), keepdims=1)

    def conv(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        n, c, *size = shape
        kernel, dilation, stride = self.pick(1, 3), self.pick(1, 1, 2), self.pick(1, 1, 2)
        if not all(size) or not c:
            return
        group, filters = self.pick((1, 4), (1, 5), (c, c), (1, c))
        reach = (kernel - 1) * dilation + 1
        out = [(d + 2 * (reach // 2) - reach) // stride + 1 for d in size]
        reads = [source, self.weight(filters, c // group, *[kernel] * len(size))]
        reads += self.pick([], [self.weight(filters)])
        options: dict[str, Any] = {"pads": [reach // 2] * 2 * len(size)}
        if dilation == 1 and self.pick(True, False):
            options, out = {"auto_pad": "SAME_UPPER"}, [-(-d // stride) for d in size]
        steps = {"strides": [stride] * len(size), "dilations": [dilation] * len(size)}
        scope.add("Conv", reads, (n, filters, *out), group=group, **steps, **options)

    def transposed_conv(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        n, c, h, w = shape
        if 0 not in shape and h * w < 200:
            stride = self.pick(1, 2)
            reads = [source, self.weight(c, 3, 2, 2), *self.pick([], [self.weight(3)])]
            size = [(d - 1) * stride + 2 for d in (h, w)]
            scope.add("ConvTranspose", reads, (n, 3, *size), strides=[stride] * 2)

    def pool(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        if 0 in shape:
            return
        kind = self.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
        if kind.startswith("Global"):
            scope.add(kind, [source], (*shape[:2], 1, 1))
        else:
            scope.add(kind, [source], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])

    def resize(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        n, c, h, w = shape
        if 0 not in shape and h * w < 200:
            scales = self.constant(F([1, 1, 2, 2]))
            scope.add("Resize", [source, "", scales], (n, c, 2 * h, 2 * w), mode=self.pick("nearest", "linear"))

    def normalize(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        c = shape[1]
        if c and 0 not in shape:
            reads = [self.weight(c), self.weight(c)]
            if self.pick(True, False):
                scope.add("BatchNormalization", [source, *reads, reads[1], self.constant(F(np.arange(c) + 1))], shape)
            else:
                scope.add("InstanceNormalization", [source, *reads], shape)

    def layer_norm(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        if shape[-1] > 1 and 0 not in shape:
            scope.add("LayerNormalization", [source, self.weight(shape[-1]), self.weight(shape[-1])], shape)

    def matmul(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        columns = self.pick(1, 4, 7, shape[-1] or 1)
        kind = self.pick("right", "right", "right", "left", "stack", "both")
        if kind == "left":
            scope.add("MatMul", [self.weight(columns, shape[-2]), source], (*shape[:-2], columns, shape[-1]))
        elif kind == "stack" and len(shape) == 3:
            weight = self.weight(shape[0], shape[-1], columns)
            scope.add("MatMul", [source, weight], (*shape[:-1], columns))
        elif kind == "both" and shape[-1] == shape[-2]:
            scope.add("MatMul", [source, source], shape)
        else:
            scope.add("MatMul", [source, self.weight(shape[-1], columns)], (*shape[:-1], columns))

    def gemm(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        trans_a, trans_b, columns = self.pick(0, 1), self.pick(0, 1), self.pick(1, 4, shape[-1] or 1)
        rows, inner = shape[::-1] if trans_a else shape
        weight = self.weight(columns, inner) if trans_b else self.weight(inner, columns)
        size = self.pick((), (columns,), (1, columns), (rows, 1), (1,))
        bias = [self.weight(*size)] if size else []
        scalars = {"alpha": self.pick(1.0, 1.0, -0.5, 3.0), "beta": self.pick(1.0, 1.0, 0.0, -2.0)}
        options = {"transA": trans_a, "transB": trans_b, **scalars}
        scope.add("Gemm", [source, weight, *bias], (rows, columns), **options)

    def recurrent(self, scope: Scope, source: str, shape: Shape, _: int) -> None:
        if 0 in shape:
            return
        op_type, hidden = self.pick("LSTM", "GRU", "RNN"), self.pick(3, 4)
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type] * hidden
        direction = self.pick("forward", "reverse", "bidirectional")
        ways = 2 if direction == "bidirectional" else 1
        reads = [source, self.weight(ways, gates, shape[2]), self.weight(ways, gates, hidden)]
        reads += self.pick([], [self.weight(ways, 2 * gates)])
        made = (shape[0], ways, shape[1], hidden)
        scope.add(op_type, reads, made, hidden_size=hidden, direction=direction)

    # -- bodies -------------------------------------------------------------------------------------------------------

    def body(self, scope: Scope, inner: dict[str, Shape], shape: Shape, depth: int) -> tuple[Scope, str]:
        """Grow a body; its result has the shape asked for, as a product with a weight from outside makes sure."""
        made = Scope(self, {**scope.values, **inner})
        source = self.pick(*[name for name, known in made.values.items() if known == shape])
        result = made.add("MatMul", [source, self.weight(shape[-1], shape[-1])], shape)
        for _ in range(self.draw(st.integers(0, 2))):
            self.grow(made, depth - 1)
        same = [name for name in made.own if made.values[name] == shape]
        return made, made.add("Identity", [self.pick(*same, result)], shape)

    def branch(self, scope: Scope, source: str, shape: Shape, depth: int) -> None:
        bodies = {}
        for name in ("then_branch", "else_branch"):
            made, result = self.body(scope, {}, shape, depth)
            bodies[name] = helper.make_graph(made.nodes, name, [], [made.info(result)])
        scope.add("If", ["condition"], shape, **bodies)

    def loop(self, scope: Scope, source: str, shape: Shape, depth: int) -> None:
        state, number, go, on = (self.fresh() for _ in range(4))
        made, result = self.body(scope, {state: shape}, shape, depth)
        made.nodes.append(helper.make_node("Identity", [go], [on]))
        inputs = [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            made.info(state),
        ]
        outputs = [helper.make_tensor_value_info(on, TensorProto.BOOL, []), made.info(result)]
        body = helper.make_graph(made.nodes, "loop", inputs, outputs)
        rounds = self.constant(np.int64(self.pick(0, 1, 3)))
        scope.add("Loop", [rounds, "", source], shape, body=body)

    def scan(self, scope: Scope, source: str, shape: Shape, depth: int) -> None:
        if len(shape) < 3:
            return
        item = self.fresh()
        made, result = self.body(scope, {item: shape[1:]}, shape[1:], depth)
        body = helper.make_graph(made.nodes, "scan", [made.info(item)], [made.info(result)])
        scope.add("Scan", [source], shape, body=body, num_scan_inputs=1)


@st.composite
def random_models(draw: Any) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A model and two samples for it."""
    draft = Draft(draw)
    shapes = {
        "x": draft.pick((1, 4, 6, 6), (2, 3, 7, 5), (1, 1, 4, 9), (0, 4, 6, 6)),
        "m": draft.pick((3, 8), (1, 5), (4, 4)),
        "s": draft.pick((3, 2, 6), (4, 1, 4), (1, 1, 1)),
    }
    scope = Scope(draft, dict(shapes))
    table = draft.weight(9, 6)
    scope.add("Gather", [table, "ids"], (2, 3, 6))
    for _ in range(draw(st.integers(1, 9))):
        draft.grow(scope, depth=2)
    outputs = [scope.own[-1], *draw(st.lists(st.sampled_from(scope.own), max_size=3))]
    open_batch = draft.pick(True, False, False)
    inputs = []
    for name, shape in shapes.items():
        dims = [f"batch of {name}", *shape[1:]] if open_batch else shape
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    inputs += [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3]),
        helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
    ]
    made = helper.make_graph(
        scope.nodes,
        draft.stem,
        inputs,
        [scope.info(name) for name in dict.fromkeys(outputs)],
        [numpy_helper.from_array(array, name) for name, array in draft.weights.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", draft.pick(18, 19, 21))], ir_version=10)
    samples = []
    for seed in range(2):
        sample: dict[str, np.ndarray] = {name: floats(*shape, seed=seed) for name, shape in shapes.items()}
        samples.append(sample | {"ids": np.arange(6).reshape(2, 3) % 9, "condition": np.array(seed == 0)})
    return model, samples
