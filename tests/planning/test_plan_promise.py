"""A plan is a promise: what it accepts in random graphs is rewritten, loads and runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from helpers import ALL, build, floats, node, quantize_in_memory, recipe_of, sqnr
from hypothesis import given, settings
from hypothesis import strategies as st

IMAGE_OPS = (
    *("Conv", "Conv", "Conv", "ConvTranspose", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("LeakyRelu", "Add", "Mul", "Concat", "Sigmoid", "Flatten", "Resize", "Transpose", "HardSigmoid", "HardSwish"),
)


class Draft:
    """A random graph, grown node by node from what is there."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.values = {"x": (1, 4, 6, 6)}

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def weight(self, *shape: int) -> str:
        same = [name for name, array in self.weights.items() if array.shape == shape and array.dtype == np.float32]
        if same and self.pick(True, False):
            return same[0]
        name = f"w{len(self.weights)}"
        self.weights[name] = floats(*shape, seed=len(self.weights), scale=0.5)
        return name

    def add(self, op: str, inputs: str, shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        self.values[name] = shape

    def grow(self) -> None:
        source = self.pick(*self.values)
        shape = self.values[source]
        (self.grow_image if len(shape) == 4 else self.grow_matrix)(source, shape)

    def grow_image(self, source: str, shape: tuple[int, ...]) -> None:
        n, c, h, w = shape
        kind = self.pick(*IMAGE_OPS)
        if kind == "Conv":
            group = self.pick(1, c)
            bias = " " + self.weight(c) if self.pick(True, False) else ""
            names = f"{source} {self.weight(c, c // group, 3, 3)}{bias}"
            self.add("Conv", names, shape, group=group, pads=[1, 1, 1, 1])
        elif kind == "ConvTranspose":
            self.add(kind, f"{source} {self.weight(c, c, 1, 1)}", shape)
        elif kind == "Clip":
            self.weights.setdefault("low", np.array(self.pick(-1, 0, 0.1), np.float32))
            self.weights.setdefault("high", np.array(1, np.float32))
            self.add(kind, f"{source} low high", shape)
        elif kind in ("MaxPool", "AveragePool"):
            self.add(kind, source, shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif kind == "GlobalAveragePool":
            self.add(kind, source, (n, c, 1, 1))
        elif kind == "Transpose":
            self.add(kind, source, (n, c, w, h), perm=[0, 1, 3, 2])
        elif kind in ("Add", "Mul", "Concat"):
            other = self.pick(*[name for name, known in self.values.items() if known == shape])
            axis = {"axis": 0} if kind == "Concat" else {}
            self.add(kind, f"{source} {other}", (2 * n, c, h, w) if axis else shape, **axis)
        elif kind == "Flatten":
            self.add(kind, source, (n * c, h * w), axis=2)
        elif kind == "Resize":
            self.weights.setdefault("sizes", np.array([1, 1, 1, 1], np.float32))
            self.add(kind, f"{source} - sizes", shape)
        else:
            self.add(kind, source, shape)

    def grow_matrix(self, source: str, shape: tuple[int, ...]) -> None:
        m, k = shape
        kind = self.pick("MatMul", "MatMulLeft", "Gemm", "Gemm", "Relu", "Softmax", "Add", "Transpose")
        if kind == "MatMul":
            self.add(kind, f"{source} {self.weight(k, 4)}", (m, 4))
        elif kind == "MatMulLeft":
            self.add("MatMul", f"{self.weight(4, m)} {source}", (4, k))
        elif kind == "Gemm":
            trans_a, trans_b = self.pick(0, 1), self.pick(0, 1)
            rows, inner = (k, m) if trans_a else (m, k)
            bias = self.pick("", f" {self.weight(4)}", f" {self.weight(rows, 1)}", f" {self.weight(1, 4)}")
            weight = self.weight(4, inner) if trans_b else self.weight(inner, 4)
            scalars = {"alpha": self.pick(1.0, -0.5), "beta": self.pick(1.0, 0.0, 2.0)}
            self.add(kind, f"{source} {weight}{bias}", (rows, 4), transA=trans_a, transB=trans_b, **scalars)
        elif kind == "Add":
            self.add(kind, f"{source} {self.weight(k)}", shape)
        elif kind == "Transpose":
            self.add(kind, source, (k, m))
        else:
            self.add(kind, source, shape)


@st.composite
def graphs(draw: Any) -> onnx.ModelProto:
    draft = Draft(draw)
    for _ in range(draw(st.integers(1, 8))):
        draft.grow()
    made = [name for name in draft.values if name != "x"]
    outputs = [made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))]
    used = {given for one_node in draft.nodes for given in one_node.input}
    weights = {name: array for name, array in draft.weights.items() if name in used}
    return build(draft.nodes, {"x": [1, 4, 6, 6]}, list(dict.fromkeys(outputs)), weights)


@settings(max_examples=120, deadline=None)
@given(
    graphs(),
    st.sampled_from(["auto", "dynamic-int8", "static-int8", "weight-int8"]),
    st.sampled_from(["channel", "tensor"]),
    st.sampled_from(["cast-mul", "qdq"]),
    st.booleans(),
)
def test_what_a_plan_accepts_is_rewritten_loads_and_runs(proto, recipe, granularity, form, integer_conv):
    feeds = {"x": floats(1, 4, 6, 6, seed=9)}
    settings = {"granularity": granularity, "form": form, "integer_conv": integer_conv}
    made = quantize_in_memory(proto, recipe, [feeds], **settings)
    expected, plain, fused = made.float_run(feeds), made.run(feeds), made.run(feeds, ALL)
    for wanted, exact, fast in zip(expected, plain, fused, strict=True):
        assert wanted.shape == exact.shape == fast.shape
        assert np.isfinite(exact).all()
        if wanted.any():
            # No bound on the error of a random model; but both levels must agree, up to last bits that are requantized.
            assert sqnr(exact, fast) > 12


CHANGES = {
    "name": st.sampled_from(["auto", "static-int8", "weight-int8", "weight-int4"]),
    "form": st.sampled_from(["qdq", "matmulnbits"]),
    "block_size": st.sampled_from([16, 32]),
    "activations": st.sampled_from(["int8", "uint16"]),
    "domain": st.just("com.microsoft"),
    "granularity": st.just("tensor"),
}


@settings(deadline=None, max_examples=40)
@given(
    graphs(),
    st.sampled_from(["cpu", "generic", "openvino", "qnn", "tensorrt"]),
    st.fixed_dictionaries({}, optional=CHANGES),
)
def test_what_a_plan_for_a_target_accepts_is_rewritten_loads_and_runs(proto, target, changes):
    feeds = {"x": floats(1, 4, 6, 6, seed=9)}
    recipe = recipe_of("static-int8", target=target).setting(**changes)
    made = quantize_in_memory(proto, recipe, [feeds])
    for wanted, exact, fast in zip(made.float_run(feeds), made.run(feeds), made.run(feeds, ALL), strict=True):
        assert np.isfinite(exact).all()
        if wanted.any():  # both levels agree, or neither is the worse one
            assert sqnr(exact, fast) > 12 or sqnr(wanted, fast) > sqnr(wanted, exact) - 3
