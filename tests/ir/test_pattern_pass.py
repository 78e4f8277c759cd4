"""Passes written as a pattern and its replacement."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import run as compute
from ir_support import X, assert_consistent, model_of, ops

from onnxq.ir import Model, Patch, Value, infer_types
from onnxq.ir.match import Match, NoMatch, op, var
from onnxq.ir.pass_manager import Pass, find_passes, run_passes
from onnxq.ir.pattern_pass import Rewrite, pattern_pass
from onnxq.ir.shape_inference.symbolic import Shapes

TWICE = op("Neg", op("Neg", var("x"), name="inner", once=True))


def keep(patch: Patch, found: Match) -> Value:
    return patch.op("Identity", found["x"], hint=found.result.name)


def model(steps: str, outputs: str = "float[2,4] y") -> Model:
    return model_of(f"g (float[2,4] x, bool c) => ({outputs}) {{ {steps} }}")


def run(rewrite: Rewrite, given: Model) -> Model:
    run_passes(given, [Pass("one", "simplify", 1, "It rewrites.", rewrite)])
    assert_consistent(given)
    return given


def test_what_replaces_takes_over_name_and_place() -> None:
    given = model("a = Abs(x) b = Neg(a) [last] y = Neg(b)")
    made = run(Rewrite(TWICE, keep, "it is undone"), given).graph
    assert ops(made) == ["Abs", "Identity"]
    assert (made.nodes[1].name, made.nodes[1].outputs[0].name) == ("last", "y")
    other = run(Rewrite(TWICE, keep, "it is undone", keeps_name=False), model("b = Neg(x) [last] y = Neg(b)")).graph
    assert other.nodes[0].name != "last"


def test_a_value_inside_can_be_what_is_replaced() -> None:
    def write(patch: Patch, found: Match) -> Value:
        return patch.op("Abs", found["x"], hint=found["inner"].name)

    made = run(Rewrite(TWICE, write, "it is inside", replaces="inner"), model("b = Neg(x) y = Neg(b)")).graph
    assert ops(made) == ["Abs", "Neg"]
    assert made.nodes[0].outputs[0].name == "b"


def test_matches_that_share_a_node_are_not_rewritten_at_once() -> None:
    given = model("a = Neg(x) b = Neg(a) d = Neg(b) e = Neg(d) y = Abs(e)")
    rewrite = Rewrite(TWICE, keep, "it is undone")
    assert len(list(rewrite(given))) == 2  # (a, b) and (d, e), but not (b, d)
    assert ops(run(rewrite, given).graph) == ["Identity", "Identity", "Abs"]


def test_a_rewrite_may_refuse_and_say_why() -> None:
    def write(patch: Patch, found: Match) -> Value:
        raise NoMatch("today is no day for it")

    given = model("b = Neg(x) y = Neg(b)")
    rewrite = Rewrite(TWICE, write, "it is undone")
    assert list(rewrite(given)) == []
    assert rewrite.why_not(given, given.graph.nodes[1]) == "today is no day for it"
    assert rewrite.why_not(given, given.graph.nodes[0]) == "input 0 of Neg 'b' is 'x', which no node makes: Neg should"
    assert Rewrite(TWICE, keep, "it is undone").why_not(given, given.graph.nodes[1]) == ""


def test_bodies_are_rewritten_too_unless_the_pass_is_for_the_main_graph() -> None:
    then, other = "t () => (float[2,4] u) { p = Neg(x) u = Neg(p) }", "e () => (float[2,4] v) { v = Exp(x) }"
    body = f"then_branch = {then}, else_branch = {other}"
    for main_graph in (False, True):
        rewrite = Rewrite(TWICE, keep, "it is undone", main_graph=main_graph)
        given = model(f"y = If(c) <{body}>")
        inner = given.graph.nodes[0].bodies["then_branch"][0]
        reason = "it stands in a body, and the pass works on the main graph" if main_graph else ""
        assert rewrite.why_not(given, inner.nodes[1]) == reason
        run(rewrite, given)
        assert ops(inner) == (["Neg", "Neg"] if main_graph else ["Identity"])


def test_shapes_and_an_operator_set_can_be_asked_for() -> None:
    def write(patch: Patch, found: Match, shapes: Shapes) -> Value:
        assert [size.known for size in shapes.of(found["x"])] == [2, 4]
        return patch.op("Identity", found["x"], hint=found.result.name)

    given = model("b = Neg(x) y = Neg(b)")
    infer_types(given)
    (change,) = Rewrite(TWICE, write, "it is undone", shapes=True, needs_opset=18)(given)
    assert change.opset == 18


def test_a_pattern_pass_is_registered_under_the_module_of_its_function() -> None:
    found = {item.name: item for item in find_passes("simplify")}
    assert isinstance(found["rms_norm_reciprocal"].run, Rewrite)
    assert found["rms_norm_reciprocal"].summary.startswith("Write the product with a reciprocal root mean square")
    with pytest.raises(ValueError, match="no module of a phase"):
        pattern_pass(TWICE, order=1, because="it is undone")(keep)


def test_outputs_stay_the_same() -> None:
    given = model("b = Neg(x) y = Neg(b)")
    before = compute(bytes(given.serialize()), {"x": X, "c": np.array(True)})
    after = compute(bytes(run(Rewrite(TWICE, keep, "it is undone"), given).serialize()), {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(before[0], after[0])
