"""Plans: every sentence that refuses, and what the recipes choose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import build, floats, graph, node, quantize_in_memory, recipe_of, typed
from onnx import TensorProto, helper

import onnxq
from onnxq.planning.planner import Plan, make_plan, plan_again

I64 = TensorProto.INT64
F16, F64 = np.float16, np.float64


def raw(nodes: list, inputs: Mapping[str, Any], weights=None, opset: int = 17, gives=TensorProto.FLOAT):
    """A model that the checker has not seen: guards must hold for broken ones, too."""
    outputs = {nodes[-1].output[0]: gives}
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph(nodes, inputs, outputs, weights or {}), opset_imports=imports, ir_version=6)


def one(
    text: str,
    inputs: Mapping[str, Any],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    gives: int = TensorProto.FLOAT,
    **attributes: Any,
):
    """A model of one node, `Op input input`, whose output has the element type `gives`."""
    op, names = text.split(" ", 1)
    return raw([node(op, names, "y", **attributes)], inputs, weights, opset, gives)


def matmul(shape=(6, 7), dtype=np.float32, **inputs: Any):
    return one("MatMul x w", {"x": [4, 6], **inputs}, {"w": np.zeros(shape, dtype)})


def conv(shape=(4, 3, 3, 3), dtype=np.float32, x: Any = (1, 3, 8, 8), names="x w", inputs: Any = None):
    return one(f"Conv {names}", {"x": list(x), **(inputs or {})}, {"w": np.zeros(shape, dtype)})


def between_customs():
    nodes = [
        node("Odd", "x", "h", domain="custom"),
        node("LeakyRelu", "h", "y"),
        node("Odd", "y", "z", domain="custom"),
    ]
    return raw(nodes, {"x": [4, 6]})


def stored(op: str, weight: np.ndarray):
    """A weight behind Cast and Mul for a MatMul, behind DequantizeLinear for a Conv."""
    weights = {"q": weight.astype(np.int8), "s": np.array(0.5, np.float32)}
    nodes = [node("DequantizeLinear", "q s", "w")]
    if op == "MatMul":
        nodes = [node("Cast", "q", "f", to=TensorProto.FLOAT), node("Mul", "f s", "w")]
    return raw([*nodes, node(op, "x w", "y")], {"x": [4, 6] if op == "MatMul" else [1, 3, 8, 8]}, weights)


def in_body():
    body = graph([node("MatMul", "x w", "t", name="n_y")], {}, ["t"], {"w": floats(6, 7)}, "then")
    other = graph([node("MatMul", "x v", "e")], {}, ["e"], {"v": floats(6, 7)}, "else")
    holder = helper.make_node("If", ["c"], ["z"], name="holder", then_branch=body, else_branch=other)
    return raw([holder], {"c": (TensorProto.BOOL, []), "x": [4, 6]})


SMALL, BIG = floats(4, 5), floats(32, 32)
TABLE = {"i": (I64, [3])}
ELEMENTWISE = "masks and elementwise arithmetic around float values stay float"
NORMALISED = "normalisation loses more accuracy in 8 bit than it saves time"
NO_KERNEL = "onnxruntime has no fast integer kernel for it"
MOVES = "it moves values from place to place"
DYNAMIC, STATIC, STORED = "dynamic-int8", "static-int8", "weight-int8"
REFUSALS = [
    # weights
    (DYNAMIC, matmul(w=[6, 7]), "weight can be overridden by a graph input"),
    (
        DYNAMIC,
        one("MatMul w x", {"x": [7, 6], "w": [6, 7]}, {"w": floats(6, 7)}),
        "weight can be overridden by a graph input",
    ),
    (STATIC, conv(inputs={"w": [4, 3, 3, 3]}), "weight can be overridden by a graph input"),
    (STATIC, one("Conv x k", {"x": [1, 3, 8, 8], "k": [4, 3, 3, 3]}), "weight is not a constant"),
    (DYNAMIC, matmul(dtype=F16), "weight is float16, not float32"),
    (DYNAMIC, matmul(dtype=F64), "weight is float64, not float32"),
    (DYNAMIC, matmul(dtype=np.int32), "weight is int32, not float32"),
    (STATIC, conv(dtype=F16), "weight is float16, not float32"),
    (STATIC, conv((4, 3)), "weight has 2 dimensions"),
    (STATIC, conv((4, 3, 1, 1, 1, 1), x=(1, 3, 2, 2, 2, 2)), "it has 4 spatial dimensions"),
    (DYNAMIC, matmul((6, 0)), "weight is empty"),
    (STATIC, conv((0, 3, 3, 3)), "weight is empty"),
    (DYNAMIC, one("MatMul x x2", {"x": [4, 6], "x2": [6, 4]}), "both inputs are activations: there is no weight"),
    (STATIC, one("Gemm x x2", {"x": [4, 6], "x2": [6, 4]}), "both inputs are activations: there is no weight"),
    (DYNAMIC, one("MatMul v w", {}, {"v": SMALL, "w": SMALL.T}), "both inputs are constants"),
    (DYNAMIC, matmul((6,)), "weight is a vector"),
    (STORED, one("MatMul w x", {"x": [6, 4]}, {"w": floats(6)}), "weight is a vector"),
    (DYNAMIC, one("MatMul x w", {"x": [6]}, {"w": floats(6, 7)}), "its data input is a vector"),
    (
        STATIC,
        one("MatMul w x", {"x": [6, 4]}, {"w": SMALL}),
        "the weight is the first input, for which onnxruntime has no static integer kernel",
    ),
    (
        STATIC,
        one("Gemm x w", {"x": [4, 6]}, {"w": floats(6, 7)}, alpha=0.0),
        "alpha is zero: there is no product to quantize",
    ),
    (STATIC, conv(names="x w b", inputs={"b": [4]}), "bias is not a constant"),
    (STORED, matmul(), "weight has only 42 elements"),
    (STORED, conv(), "weight has only 108 elements"),
    # data
    (STATIC, between_customs(), "the type of its input 'h' is not known"),
    (
        DYNAMIC,
        one("MatMul x w", {"x": (TensorProto.DOUBLE, [4, 6])}, {"w": floats(6, 7)}),
        "its input is float64, not float32",
    ),
    (STATIC, one("Conv v w", {}, {"v": floats(1, 3, 8, 8), "w": floats(4, 3, 3, 3)}), "its data input is a constant"),
    (STATIC, raw([helper.make_node("Conv", ["x", ""], ["y"], "n_y")], {"x": [1, 3, 8, 8]}), "its input 1 is missing"),
    # embeddings
    (STORED, one("Gather x i", {"x": [9, 4], **TABLE}), "it does not look up a constant table"),
    (STORED, one("Gather t i", TABLE, {"t": BIG}, axis=1), "it does not look up rows of a matrix"),
    (STORED, one("Gather t i", TABLE, {"t": floats(4, 32, 32)}), "it does not look up rows of a matrix"),
    (STORED, one("Gather t i", TABLE, {"t": SMALL}), "table has only 20 elements"),
    (STORED, one("Gather t i", TABLE, {"t": BIG.astype(F16)}), "weight is float16, not float32"),
    (
        STORED,
        one("Slice t s i a", TABLE, {"t": BIG, "s": np.array([0]), "a": np.array([-1])}),
        "it does not take whole rows of a table",
    ),
    (
        STORED,
        one("Slice t s i a", TABLE, {"t": BIG, "s": np.array([0]), "a": np.array([0])}),
        "its table may be a mask",
    ),
    (
        STORED,
        one("Slice t s i a", TABLE, {"t": SMALL, "s": np.array([0]), "a": np.array([0])}),
        "table has only 20 elements",
    ),
    # convolutions at run time
    (
        DYNAMIC,
        conv(),
        "ConvInteger has no fast kernel: it is no faster than float (set integer_conv = true to use it)",
    ),
    # operators between
    (
        STATIC,
        one("MaxPool x", {"x": [1, 3, 8, 8]}, opset=11, kernel_shape=[2, 2]),
        "MaxPool works on 8 bit from opset 12 on",
    ),
    (
        STATIC,
        raw([node("MaxPool", "x", "y z", kernel_shape=[2, 2])], {"x": [1, 4, 8, 8]}),
        "it has several outputs",
    ),
    (
        STATIC,
        one("Resize x - s", {"x": [1, 3, 8, 8]}, {"s": floats(4)}, mode="linear"),
        "interpolation rounds in 8 bit and saves no time",
    ),
    (
        STATIC,
        one("MaxPool x", {"x": [1, 3, 8, 8]}, kernel_shape=[2, 2]),
        "neighbours are float: int8 would only add conversions",
    ),
    (
        STATIC,
        one("Add x w", {"x": [4, 5]}, {"w": SMALL}),
        "one of its inputs is a constant",
    ),
    (STATIC, one("Relu x", {"x": [4, 5]}), "neighbours are float"),
    # operators that stay float
    (STATIC, one("LayerNormalization x s", {"x": [4, 5]}, {"s": floats(5)}), NORMALISED),
    (STATIC, one("Softmax x", {"x": [4, 5]}), "probabilities lose more accuracy in 8 bit than they save time"),
    (STATIC, one("Tanh x", {"x": [4, 5]}), NO_KERNEL),
    (STATIC, one("Sub x w", {"x": [4, 5]}, {"w": SMALL}), ELEMENTWISE),
    (STATIC, one("Expand x s", {"x": [4, 5]}, {"s": np.array([4, 5])}), MOVES),
    (STATIC, one("Cast x", {"x": [4, 5]}, to=TensorProto.FLOAT16), "it changes the element type"),
    (STATIC, one("Shape x", {"x": [4, 5]}, gives=I64), "it works on integers or shapes"),
    (STATIC, one("Odd x", {"x": [4, 5]}, domain="custom"), "onnxq has no quantized form for operators of custom"),
    (
        STORED,
        one("LSTM x w r", {"x": [3, 2, 4]}, {"w": floats(1, 16, 4), "r": floats(1, 16, 4)}),
        "weights have only 128 elements",
    ),
    (
        DYNAMIC,
        one("ConvTranspose x w", {"x": [1, 3, 8, 8]}, {"w": floats(3, 4, 3, 3)}),
        "ConvTranspose has no dynamic-int8 form",
    ),
    (DYNAMIC, one("Reshape x s", {"x": [4, 5]}, {"s": np.array([20])}), MOVES),
    (DYNAMIC, stored("MatMul", floats(6, 7)), "weight is in 8 bit already"),
    (STORED, stored("Conv", floats(4, 3, 3, 3)), "weight is in 8 bit already"),
]


@pytest.mark.parametrize(("scheme", "proto", "reason"), REFUSALS, ids=[f"{s}: {r[:40]}" for s, _, r in REFUSALS])
def test_every_refusal_is_a_sentence(scheme, proto, reason):
    plan = make_plan(typed(proto), recipe_of(scheme), with_data=True)
    decision = next(d for d in plan.decisions if d.node.name == "n_y")
    assert decision.scheme is None
    assert decision.reason == reason
    assert plan.reasons()[decision.reason] >= 1
    assert not plan.calibrated() or scheme == STATIC


def test_a_body_that_no_sample_has_run():
    model = typed(in_body())
    then_branch, else_branch = list(model.graph.graphs())[1:]
    plan = plan_again(model, Plan(recipe_of(STATIC)), unreached=[then_branch])
    found = {d.node.graph: (d.scheme, d.reason) for d in plan.decisions if d.node.op_type == "MatMul"}
    assert found[then_branch] == (None, "no sample runs the body it stands in")
    assert found[else_branch][0] == STATIC
    assert [value.name for value in plan.calibrated()] == ["x"]


def test_a_node_whose_output_nobody_can_read():
    nodes = [helper.make_node("MatMul", ["x", "w"], [""], "n_y"), node("Relu", "x", "z")]
    plan = make_plan(typed(raw(nodes, {"x": [4, 6]}, {"w": floats(6, 7)})), recipe_of(DYNAMIC), with_data=False)
    assert plan.decisions[0].reason == "its output is not used"


def test_nodes_that_hold_bodies_say_so():
    plan = make_plan(typed(in_body()), recipe_of(DYNAMIC), with_data=False)
    assert {d.node.name: d.reason for d in plan.decisions}["holder"] == (
        "it only holds bodies, whose nodes are planned one by one"
    )
    assert plan.counts() == {"float": 1, "dynamic-int8": 2}


def test_half_precision_models_stay_as_they_are():
    """Other quantizers write a model that does not load."""
    proto = build(
        [node("MatMul", "x w", "y")],
        {"x": (TensorProto.FLOAT16, [4, 6])},
        {"y": TensorProto.FLOAT16},
        {"w": BIG.astype(F16)[:6]},
    )
    for recipe in (DYNAMIC, STORED, STATIC, "auto"):
        made = quantize_in_memory(proto, recipe, [{"x": np.zeros((4, 6), F16)}])
        assert made.data == made.source
        assert made.decision("n_y").reason == "weight is float16, not float32"


# -- what auto chooses ------------------------------------------------------------------------------------------------


def mixed() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c"),
        node("Relu", "c", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g", "y"),
    ]
    return build(nodes, {"x": [1, 4, 8, 8]}, ["y"], {"w": floats(16, 4, 3, 3), "g": floats(16, 5)})


@pytest.mark.parametrize(
    ("recipe", "with_data", "schemes"),
    [
        (STATIC, True, {"n_c": STATIC, "n_r": STATIC, "n_p": STATIC, "n_f": STATIC, "n_y": STATIC}),
        ("auto", False, {"n_c": STORED}),  # so small a Gemm is faster in float
        (DYNAMIC, False, {"n_y": DYNAMIC}),
        (STORED, False, {"n_c": STORED}),
    ],
)
def test_what_a_recipe_makes_of_each_node(recipe, with_data, schemes):
    plan = make_plan(typed(mixed()), recipe_of(recipe), with_data=with_data)
    assert {d.node.name: d.scheme for d in plan.quantized()} == schemes


def test_the_first_refusal_is_the_reason_where_every_scheme_refuses():
    plan = make_plan(typed(conv(names="x w b", inputs={"b": [4]})), recipe_of("auto"), with_data=True)
    assert plan.decisions[0].reason == "bias is not a constant"


@pytest.mark.parametrize(
    ("recipe", "settings", "opset"),
    [
        (DYNAMIC, {}, 11),
        (STATIC, {}, 13),
        (STATIC, {"granularity": "tensor"}, 10),
        (STORED, {}, 7),
        (STORED, {"form": "qdq"}, 13),
        (STORED, {"form": "qdq", "granularity": "tensor"}, 10),
    ],
)
def test_the_opset_that_a_plan_needs(recipe, settings, opset):
    proto = one("MatMul x w", {"x": [4, 32]}, {"w": BIG}, opset=6)
    assert make_plan(typed(proto), recipe_of(recipe, **settings), with_data=True).opset == opset
    assert make_plan(typed(one("Softmax x", {"x": [4, 5]})), recipe_of(recipe), with_data=True).opset == 1


def test_planning_reads_no_weight(monkeypatch):
    from onnxq.ir import StoredTensor

    def refuse(self):
        raise AssertionError("the plan read a weight")

    model = typed(mixed())
    monkeypatch.setattr(StoredTensor, "numpy", refuse)
    make_plan(model, recipe_of("auto"), with_data=True)


def test_no_refusal_lacks_a_test():
    """Every sentence of these files stands in a test, so that nobody adds a guard that nothing triggers."""
    package, tests = Path(onnxq.__file__).parent, Path(__file__).parents[1]
    files = [
        package / "ops" / "forms" / f"{name}.py"
        for name in ("family", "matmul", "integer_products", "conv", "embedding", "integer_domain", "hard_activations")
    ]
    sentences = [text for f in files for text in re.findall(r'NotQuantizable\(\s*"([^"]+)"', f.read_text("utf-8"))]
    assert len(sentences) >= 17
    written = "".join(p.read_text("utf-8") for p in (*tests.glob("ops/test_*.py"), Path(__file__)))
    assert [text for text in sentences if text not in written] == []


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "scheme"),
    [
        (1, 64, 64, "weight-int8"),
        (1, 64, 256, "weight-int8"),
        (1, 1024, 256, "dynamic-int8"),
        (64, 256, 256, "dynamic-int8"),
        ("n", 64, 64, "weight-int8"),  # a batch is taken for one row
    ],
)
def test_ranges_are_found_at_run_time_only_where_that_is_faster(rows, inner, columns, scheme):
    proto = build([node("MatMul", "x w", "y")], {"x": [rows, inner]}, weights={"w": floats(inner, columns)})
    model = typed(proto)
    (decision,) = make_plan(model, recipe_of("auto"), with_data=False).decisions
    assert decision.scheme == scheme
    assert ("int8 is not faster for this shape" in decision.reason) == (scheme == "weight-int8")
    (decision,) = make_plan(model, recipe_of("dynamic-int8"), with_data=False).decisions
    assert decision.scheme == "dynamic-int8"


@pytest.mark.parametrize(
    ("op_type", "shape", "scheme"),
    [
        ("MatMul", ["batch", 1, 256], "dynamic-int8"),
        ("MatMul", [1, 1, 1, 256], "dynamic-int8"),
        ("MatMul", ["batch", 8, 256], "static-int8"),
        ("MatMul", ["batch", "tokens", 256], "static-int8"),
        ("MatMul", ["batch", 256], "static-int8"),
        ("MatMul", [1, 256], "dynamic-int8"),
        ("Gemm", [1, 256], "dynamic-int8"),
        ("Gemm", ["batch", 256], "static-int8"),
        ("Gemm", [4, 256], "static-int8"),
    ],
)
def test_a_product_of_one_row_gets_its_scale_at_run_time_with_data_too(op_type: str, shape: list, scheme: str) -> None:
    proto = build([node(op_type, "x w", "y")], {"x": shape}, ["y"], {"w": floats(256, 512)})
    plan = make_plan(typed(proto), recipe_of("auto"), with_data=True)
    (decision,) = plan.decisions
    assert decision.scheme == scheme
    assert decision.settings is not None
    assert decision.settings.activation_granularity != "row"
    for target in ("openvino", "qnn"):
        (other,) = make_plan(typed(proto), recipe_of("auto", target=target), with_data=True).decisions
        assert other.scheme == "static-int8"


@pytest.mark.parametrize(("opset", "scheme"), [(20, None), (21, "weight-int8")])
def test_a_body_that_no_sample_has_run_gets_no_form_of_a_newer_operator_set(opset, scheme):
    """Samples have run the model as it is: it is not converted any more. Blocks are of opset 21."""
    then = graph([node("MatMul", "x w", "t")], {}, ["t"], {"w": floats(32, 32)}, "then")
    other = graph([node("MatMul", "x v", "e")], {}, ["e"], {"v": floats(32, 32, seed=1)}, "else")
    holder = helper.make_node("If", ["c"], ["z"], name="holder", then_branch=then, else_branch=other)
    model = typed(raw([holder], {"c": (TensorProto.BOOL, []), "x": [4, 32]}))
    model.opsets[""] = opset
    unreached = next(body for body in model.graph.graphs() if body.name == "then")
    plan = plan_again(model, Plan(recipe_of(STATIC, block_size=16, form="qdq")), unreached=[unreached])
    assert [d.scheme for d in plan.decisions if d.node.graph is unreached] == [scheme]
