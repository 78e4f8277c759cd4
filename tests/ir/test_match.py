"""Patterns over graphs: what they find, what they do not find, and the reasons that they give."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_support import model_of, node_of

from onnxq.ir import Graph, Model, Node, Value
from onnxq.ir.match import (
    COMMUTATIVE,
    Failure,
    Match,
    Operator,
    Pattern,
    attempt,
    computed,
    const,
    match,
    maybe,
    op,
    unset_or,
    var,
)

LEAKY = op("LeakyRelu", var(), alpha=0.25)
WEIGHTS = {"two": np.float32(2), "pair": np.int64([1, 1]), "row": np.float32([1, 2, 3, 4])}
RMS = op("Mul", var("x"), op("Reciprocal", op("Sqrt", op("Add", var("s"), const(), name="sum")), once=True))


def model(steps: str, outputs: str = "float[2,4] y", opset: int = 17, inputs: str = "float[2,4] x") -> Model:
    used = {name: array for name, array in WEIGHTS.items() if name in steps}
    return model_of(f"g ({inputs}) => ({outputs}) {{ {steps} }}", used, opset)


def why(pattern: Operator, found: Model, kind: str | None = None) -> str:
    """The reason why a pattern is not at the last node, or the first of a kind."""
    node = node_of(found.graph, kind) if kind else found.graph.nodes[-1]
    failure = attempt(pattern, node)
    assert isinstance(failure, Failure)
    assert match(pattern, node) is None
    return failure.reason


def test_a_match_gives_values_nodes_and_constants_by_name() -> None:
    made = model("s = Relu(x) t = Add(two, s) r = Sqrt(t) q = Reciprocal(r) y = Mul(q, x)")
    found = match(RMS, made.graph.nodes[-1])
    assert found is not None
    assert found.root is found.result.producer is made.graph.nodes[-1]
    assert (found["x"].name, found["s"].name, found["sum"].name) == ("x", "s", "t")
    assert found.node("sum").op_type == "Add"
    assert found.claimed == (made.graph.nodes[-1], made.graph.nodes[-2])
    again = match(op("Add", const(2, "c"), var()), made.graph.nodes[1])
    assert again is not None
    assert (again.array("c"), again.tensor("c").size, again.get("nothing")) == (2, 1, None)
    for asked in (lambda: found["z"], lambda: found.node("x"), lambda: found.array("x")):
        with pytest.raises(KeyError):
            asked()


@pytest.mark.parametrize(
    ("steps", "pattern", "reason"),
    [
        ("a = Neg(x) y = Relu(a)", op("Relu", op("Abs", ...)), "input 0 of Relu 'y' is made by Neg 'a', not by Abs"),
        (
            "a = Neg(x) y = Relu(a)",
            op("Relu", op(("Abs", "Exp"), ..., domain="my")),
            "input 0 of Relu 'y' is made by Neg 'a', not by my.Abs or my.Exp",
        ),
        ("y = Relu(x)", op("Relu", op("Abs", ...)), "input 0 of Relu 'y' is 'x', which no node makes: Abs should"),
        ("y = Add(x, x)", op("Add", var(), const()), "input 1 of Add 'y' is 'x', which is no constant"),
        ("y = Add(x, row)", op("Add", var(), const(size=1)), "'row' has 4 elements, not 1"),
        ("y = Add(x, two)", op("Add", var(), const(3)), "'two' is not 3"),
        ("y = Add(x, row)", op("Add", var(), const([1, 2, 3, 5])), "'row' is not [1, 2, 3, 5]"),
        (
            "y = Add(x, row)",
            op("Add", var(), const(fits=lambda t: t.size == 3, says="even")),
            "'row' is not even",
        ),
        (
            "a = Add(x, two) y = Add(a, two)",
            op("Add", var(), const(once=True)),
            "input 1 of Add 'y' is 'two', which is read in 2 places: one reader is needed",
        ),
        ("y = Sub(x, two)", op("Sub", var(), computed()), "'two' is not computed at run time"),
        ("a = Neg(x) y = Sub(a, x)", op("Sub", var("p"), var("p")), "'x' and 'a' have to be the same value"),
        ("y = Clip(x, , two)", op("Clip", var(), var(), var()), "input 1 of Clip 'y' is absent"),
        ("y = Clip(x, two)", op("Clip", var()), "Clip 'y' has 2 inputs, not 1"),
        ("y = Clip(x)", op("Clip", var(), const()), "input 1 of Clip 'y' is absent"),
        (
            "y = LeakyRelu<alpha = 0.5>(x)",
            op("LeakyRelu", var(), alpha=0.25),
            "attribute alpha is 0.5 in LeakyRelu 'y'",
        ),
        ("y = LeakyRelu(x)", LEAKY, "attribute alpha is absent from LeakyRelu 'y'"),
        (
            "a, b = Split<axis = 1>(x, pair) y = Neg(b)",
            op("Neg", op("Split", ...)),
            "input 0 of Neg 'y' is output 1 of Split 'a', not 0",
        ),
        (
            "a = Neg(x) b = Abs(a) c = Exp(a) y = Add(b, c)",
            op("Add", op("Abs", op("Neg", var(), once=True)), var()),
            "input 0 of Abs 'b' is 'a', which is read in 2 places: one reader is needed",
        ),
        # The order of Add that gets further says why
        (
            "a = Neg(x) b = Relu(a) y = Add(x, b)",
            op("Add", op("Relu", op("Neg", const())), var()),
            "input 0 of Neg 'a' is 'x', which is no constant",
        ),
    ],
)
def test_a_failure_says_why(steps: str, pattern: Operator, reason: str) -> None:
    assert why(pattern, model(steps, "float y")) == reason


def test_an_output_has_readers_that_nobody_knows() -> None:
    found = model("a = Neg(x) y = Abs(a)", "float[2,4] y, float[2,4] a")
    assert why(op("Abs", op("Neg", var(), once=True)), found).endswith(
        "is an output of the graph: one reader is needed"
    )
    assert match(op("Abs", op("Neg", var())), found.graph.nodes[-1]) is not None


def test_a_body_is_another_scope_and_reads_like_any_other() -> None:
    body = "then_branch = t () => (float[2,4] u) { u = Abs(a) }, else_branch = e () => (float[2,4] v) { v = Exp(a) }"
    found = model(f"a = Neg(x) y = If(c) <{body}>", inputs="float[2,4] x, bool c")
    inner = found.graph.nodes[-1].bodies["then_branch"][0].nodes[0]
    failure = attempt(op("Abs", op("Neg", var())), inner)
    assert isinstance(failure, Failure)
    assert failure.reason == "input 0 of Abs 'u' is made in another scope, by Neg 'a'"
    assert match(op("Abs", var("a")), inner) is not None
    single = model(
        f"a = Neg(x) b = Tanh(a) y = If(c) <{body.replace('Exp(a)', 'Exp(x)')}>", inputs="float[2,4] x, bool c"
    )
    tanh = node_of(single.graph, "Tanh")
    assert match(op("Tanh", op("Neg", var(), once=True)), tanh) is None  # the body reads it as well


@pytest.mark.parametrize(
    ("steps", "found"), [("y = Clip(x)", []), ("y = Clip(x, two)", ["low"]), ("y = Clip(x, , two)", ["high"])]
)
def test_inputs_may_be_left_out(steps: str, found: list[str]) -> None:
    matched = match(op("Clip", var(), maybe(var("low")), maybe(var("high"))), model(steps).graph.nodes[0])
    assert matched is not None
    assert sorted(matched.values) == found


def test_attributes_may_have_defaults() -> None:
    for stated, fits in (("", True), ("<alpha = 0.5>", True), ("<alpha = 2.0>", False)):
        node = model(f"y = LeakyRelu{stated}(x)").graph.nodes[0]
        assert (match(op("LeakyRelu", var(), alpha=unset_or(0.5)), node) is not None) == fits


def test_operands_keep_their_order_where_it_matters() -> None:
    pattern = op("Sub", op("Neg", var()), op("Abs", var()))
    assert match(pattern, model("a = Neg(x) b = Abs(x) y = Sub(a, b)").graph.nodes[-1]) is not None
    assert match(pattern, model("a = Neg(x) b = Abs(x) y = Sub(b, a)").graph.nodes[-1]) is None


def test_a_way_that_fails_late_is_taken_back() -> None:
    """Either operand could be `p`; only one of the two leaves a `p` for the other side."""
    pattern = op("Sub", op("Add", var("p"), var("q")), op("Neg", var("q")))
    for steps in ("a = Add(x, z) b = Neg(z) y = Sub(a, b)", "a = Add(z, x) b = Neg(z) y = Sub(a, b)"):
        found = match(pattern, model(steps, inputs="float[2,4] x, float[2,4] z").graph.nodes[-1])
        assert found is not None
        assert (found["p"].name, found["q"].name) == ("x", "z")


# -- against enumeration ----------------------------------------------------------------------------------------------

KINDS = {"Add": 2, "Mul": 2, "Sub": 2, "Neg": 1, "Abs": 1}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A few operators that read one another in any way."""
    known, steps = ["x"], []
    for place in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        reads = [draw(st.sampled_from(known)) for _ in range(KINDS[kind])]
        steps.append(f"v{place} = {kind}({', '.join(reads)})")
        known.append(f"v{place}")
    return model(" ".join(steps), ", ".join(f"float[2,4] {name}" for name in known[-2:])).graph


@st.composite
def patterns(draw: st.DrawFn, depth: int = 3) -> Operator:
    """An expression of these operators over two names."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    inputs = []
    for _ in range(KINDS[kind]):
        leaf = depth == 1 or draw(st.booleans())
        inputs.append(var(draw(st.sampled_from(["p", "q", ""]))) if leaf else draw(patterns(depth - 1)))
    return op(kind, *inputs, once=draw(st.booleans()), name=draw(st.sampled_from(["", "r"])))


def spellings(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern with its operands in every order that means the same."""
    if not isinstance(pattern, Operator):
        yield pattern
        return
    for inputs in product(*(list(spellings(each)) for each in pattern.inputs if isinstance(each, Pattern))):
        orders = [inputs, inputs[::-1]] if pattern.types[0] in COMMUTATIVE else [inputs]
        for order in orders:
            yield Operator(pattern.name, types=pattern.types, inputs=order, once=pattern.once)


def fits(pattern: Pattern, value: Value, names: dict[str, Value], *, root: bool) -> bool:
    """Whether a value is a pattern in this very spelling."""
    if pattern.name and names.setdefault(pattern.name, value) is not value:
        return False
    if not isinstance(pattern, Operator):
        return True
    maker = value.producer
    if maker is None or maker.op_type != pattern.types[0] or (pattern.once and not root and value.only_use is None):
        return False
    return all(fits(each, read, names, root=False) for each, read in zip(pattern.inputs, maker.inputs, strict=True))


@settings(max_examples=80, deadline=None)
@given(graphs(), patterns())
def test_it_finds_what_enumeration_finds(graph: Graph, pattern: Operator) -> None:
    for node in graph.nodes:
        expected = []
        for spelling in spellings(pattern):
            names: dict[str, Value] = {}
            if fits(spelling, node.outputs[0], names, root=True):
                expected.append(names)
        found = attempt(pattern, node)
        assert isinstance(found, Match) == bool(expected)
        assert (match(pattern, node) is None) == (not expected)
        if isinstance(found, Match):
            assert found.values in expected
        else:
            assert found.reason


def pattern_of(node: Node, leaves: dict[Value, str]) -> Operator:
    """The expression that a node ends, each value that no node makes under a name of its own."""
    inputs = [
        pattern_of(read.producer, leaves) if read.producer else var(leaves.setdefault(read, f"leaf{len(leaves)}"))
        for read in node.inputs
    ]
    return op(node.op_type, *inputs)


def swapped(pattern: Operator, choose: Iterator[bool]) -> Operator:
    inputs = tuple(swapped(each, choose) if isinstance(each, Operator) else each for each in pattern.inputs)
    if len(inputs) == 2 and pattern.types[0] in COMMUTATIVE and next(choose):
        inputs = inputs[::-1]
    return op(pattern.types, *inputs)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_every_expression_is_found_by_its_own_pattern_in_any_order(graph: Graph, random) -> None:
    leaves: dict[Value, str] = {}
    for node in graph.nodes:
        pattern = pattern_of(node, leaves)
        choices = iter(lambda: random.random() < 0.5, None)
        assert match(swapped(pattern, choices), node) is not None
        other = Operator(types=("Exp",), inputs=pattern.inputs)
        assert match(other, node) is None
