"""Weights as rows, and codes that are chosen together."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory, recipe_of, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.stats import Stats
from onnxq.errors import ModelError
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import parse_recipe
from onnxq.rounding import weights as weights_module
from onnxq.rounding.jobs import solve_all
from onnxq.rounding.weights import WeightRows, Weights, WeightSpec, rounding_jobs, searched_weights


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_rows_come_back_in_the_weights_shape(shape, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))))
    weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    rows = WeightRows(weight, axes)
    array = rows.array()
    assert array.shape[0] == np.prod([size for axis, size in enumerate(shape) if axis not in axes])
    codes, scales = rows.restore(array, array.max(axis=1))
    np.testing.assert_array_equal(codes, weight)
    np.testing.assert_array_equal(scales, weight.max(axis=axes, keepdims=True))


def measured(model, plan, x):
    """Statistics of what the layers of a plan read."""
    layers = MeasuredLayers(decision.node for decision in plan.decisions)
    return layers, calibrate(model, layers.values, [{"x": x}, {"x": -x}], kinds=layers.kinds)


@pytest.mark.parametrize(
    ("step", "shape"),
    [
        (node("MatMul", "x w", "y"), (24, 40)),
        (node("Gemm", "x w", "y", transB=1), (40, 24)),
        (node("Gemm", "x w", "y"), (24, 40)),
    ],
)
def test_each_output_channel_is_a_row(step, shape):
    model = typed(build([step], {"x": [64, 24]}, ["y"], {"w": floats(*shape)}))
    plan = make_plan(model, recipe_of("static-int8"), with_data=True)
    qparams = {value: (np.float32(0.5), np.uint8(0)) for value in plan.calibrated()}
    layers, stats = measured(model, plan, floats(64, 24, seed=1))
    (job,) = rounding_jobs(plan, qparams, stats, layers).values()
    assert job.rows.shape == (40, 24)
    assert job.noise == pytest.approx(0.25 / 12)


def test_a_product_whose_inputs_nobody_measured_is_rounded_to_nearest():
    """4,000 small searches that gain nothing would cost seconds."""
    model = typed(build([node("MatMul", "x w", "y")], {"x": [64, 24]}, ["y"], {"w": floats(24, 40)}))
    plan = make_plan(model, recipe_of("dynamic-int8"), with_data=False)
    assert not rounding_jobs(plan, {}, Stats(), MeasuredLayers([]))


def test_a_picture_is_taken_to_be_smooth_where_nobody_measured():
    proto = build([node("Conv", "x w", "y")], {"x": [1, 8, 9, 9]}, ["y"], {"w": floats(16, 8, 3, 3)})
    plan = make_plan(typed(proto), recipe_of("weight-int8"), with_data=False)
    (job,) = rounding_jobs(plan, {}, Stats(), MeasuredLayers([])).values()
    assert job.moments is not None


def test_rounding_to_nearest_asks_for_no_job():
    weight = np.ones((24, 40), np.float32)
    model = typed(build([node("MatMul", "x w", "y")], {"x": [64, 24]}, ["y"], {"w": weight}))
    plan = make_plan(model, recipe_of("static-int8", rounding="nearest"), with_data=True)
    assert not rounding_jobs(plan, {}, Stats(), MeasuredLayers([]))


def test_a_weight_that_is_not_finite_is_named():
    weight = np.ones((24, 40), np.float32)
    weight[3, 4] = np.inf
    model = typed(build([node("MatMul", "x w", "y", name="head")], {"x": [64, 24]}, ["y"], {"w": weight}))
    with pytest.raises(ModelError, match="'w', read by head: the weight holds NaN or infinity"):
        Weights().codes(model.graph.nodes[0].inputs[1], WeightSpec((0,)), None, "head")


def test_correlated_inputs_are_served_better_than_by_rounding_to_nearest():
    random = np.random.default_rng(1)
    mixing = random.standard_normal((4, 64)).astype(np.float32)
    x = (random.standard_normal((512, 4)).astype(np.float32) @ mixing) + 0.01
    weight = random.standard_normal((64, 32)).astype(np.float32)
    model = typed(build([node("MatMul", "x w", "y")], {"x": [512, 64]}, ["y"], {"w": weight}))
    plan = make_plan(model, recipe_of("weight-int8"), with_data=True)
    layers, stats = measured(model, plan, x)
    value = model.graph.nodes[0].inputs[1]
    errors = []
    for weights in (Weights(), Weights(plan, {}, stats, layers)):
        codes, scales = weights.codes(value, WeightSpec((0,)), None, "y")
        errors.append(np.square(x @ (codes * scales - weight)).mean())
    assert errors[1] < errors[0] / 10


def test_the_least_scale_is_kept_by_chosen_codes():
    weight = np.random.default_rng(2).standard_normal((24, 40)).astype(np.float32)
    model = typed(build([node("MatMul", "x w", "y")], {"x": [64, 24]}, ["y"], {"w": weight}))
    weights = Weights(make_plan(model, recipe_of("weight-int8"), with_data=False))
    floor = np.full((1, 40), 0.5, np.float32)
    codes, scales = weights.codes(model.graph.nodes[0].inputs[1], WeightSpec((0,)), floor, "y")
    assert (scales >= 0.5).all()
    assert (np.abs(codes * scales - weight) <= scales).all()


def test_variants_of_a_model_share_the_codes_with_a_least_scale(monkeypatch):
    weight = np.random.default_rng(2).standard_normal((24, 40)).astype(np.float32)
    model = typed(build([node("MatMul", "x w", "y")], {"x": [64, 24]}, ["y"], {"w": weight}))
    plan = make_plan(model, recipe_of("weight-int8"), with_data=True)
    layers, stats = measured(model, plan, floats(64, 24))
    weights, asked = Weights(plan, {}, stats, layers), []
    monkeypatch.setattr(weights_module, "solve_all", lambda jobs: asked.append(jobs) or solve_all(jobs))
    floor = np.full((1, 40), 0.5, np.float32)
    for value in (model.copy().graph.nodes[0].inputs[1] for _ in range(3)):
        codes, scales = weights.codes(value, WeightSpec((0,)), floor, "y")
        np.testing.assert_array_equal(codes, weights.codes(value, WeightSpec((0,)), floor.copy(), "y")[0])
        assert (scales >= 0.5).all()
    assert len(asked) == 1
    weights.codes(value, WeightSpec((0,)), floor * 2, "y")
    assert len(asked) == 2


def test_codes_for_another_form_are_chosen_for_all_weights_at_once(monkeypatch):
    """A search that gives all products a scale for each row would else wait for one weight after the other."""
    steps = [node("MatMul", "x v", "h"), node("Relu", "h", "r"), node("MatMul", "r w", "y")]
    model = typed(build(steps, {"x": [64, 24]}, ["y"], {"v": floats(24, 24), "w": floats(24, 40, seed=1)}))
    plan = make_plan(model, recipe_of("static-int8"), with_data=True)
    by_row = make_plan(model, recipe_of("dynamic-int8", activation_granularity="row"), with_data=True)
    layers, stats = measured(model, plan, floats(64, 24, seed=2))
    qparams = {value: (np.float32(0.05), np.uint8(128)) for value in plan.calibrated()}
    asked = []
    monkeypatch.setattr(weights_module, "solve_all", lambda jobs: asked.append(len(jobs)) or solve_all(jobs))
    one_by_one, together = (Weights(plan, qparams, stats, layers) for _ in range(2))
    together.prepare(by_row)
    wanted = searched_weights(by_row)
    assert all(coding.summed is not None and coding.summed.steps for _, coding in wanted)
    for weights in (together, one_by_one):
        found = [weights.codes(value, coding, None, "n") for value, coding in wanted]
        if weights is together:
            expected = found
    assert asked == [2, 2, 2, 1, 1]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_codes_for_another_form_are_found_quickly_until_choices_are_settled(monkeypatch):
    """A search tries a scale for each row in twenty layers of an EfficientNet, and keeps it in five."""
    model = typed(build([node("MatMul", "x w", "y")], {"x": [64, 24]}, ["y"], {"w": floats(24, 40)}))
    plan = make_plan(model, recipe_of("static-int8"), with_data=True)
    by_row = make_plan(model, recipe_of("dynamic-int8", activation_granularity="row"), with_data=True)
    layers, stats = measured(model, plan, floats(64, 24, seed=2))
    asked: list[bool] = []
    solved = lambda jobs: asked.extend(job.quick for job in jobs.values()) or solve_all(jobs)  # noqa: E731
    monkeypatch.setattr(weights_module, "solve_all", solved)
    qparams = {value: (np.float32(0.05), np.uint8(128)) for value in plan.calibrated()}
    weights = Weights(plan, qparams, stats, layers)
    ((value, coding),) = searched_weights(by_row)
    for settled in (False, False, True, True):
        if settled:
            weights.settle()
        weights.prepare(by_row)
        weights.codes(value, coding, None, "y")
    assert asked == [False, True, False]


@pytest.mark.parametrize(
    "rules", [("weight-int8", ""), ("dynamic-int8", '"row"'), ("dynamic-int8", '"tensor"'), ("static-int8", "")]
)
def test_a_weight_of_several_layers_has_one_set_of_codes_whatever_their_forms(rules):
    """A layer of an encoder that is read eight times was stored three times."""
    scheme, granularity = rules
    settings = f'scheme = "{scheme}"' + (f"\nactivation_granularity = {granularity}" if granularity else "")
    names = ("first", "second", "third")
    steps = [node("MatMul", f"{x} w", y, name=name) for x, y, name in zip("xhi", "hiy", names, strict=True)]
    model = typed(build(steps, {"x": [64, 24]}, ["y"], {"w": floats(24, 24)}))
    recipe = parse_recipe(f'scheme = "static-int8"\n[[rules]]\nname = "third"\n{settings}', "r.toml")
    plan = make_plan(model, recipe, with_data=True)
    layers, stats = measured(model, plan, floats(64, 24, seed=2))
    qparams = {value: (np.float32(0.05), np.uint8(128)) for value in plan.calibrated()}
    weights = Weights(plan, qparams, stats, layers)
    weights.settle()
    weights.prepare(plan)
    found = []
    for (value, coding), nodes in searched_weights(plan).items():
        found += [weights.codes(value, coding, None, node.label, node.name)[0] for node in nodes]
    assert len(found) == len(names)
    assert all(codes is found[0] for codes in found)
    for job in rounding_jobs(plan, qparams, stats, layers).values():  # each with limits of its own
        for pairing in () if job.pairs is None else job.pairs.pairings:
            products = found[0].T[:, pairing] * job.pairs.largest[0][pairing]
            assert np.abs(products.sum(axis=-1)).max() <= 32767
    limited = names if scheme != "weight-int8" else names[:2]
    assert tuple(cure.node for cure in weights.cures()) == limited


def test_codes_of_some_layers_are_completed_by_those_of_others():
    """Cross-validation has codes of a half of the samples for few layers, and of all samples for the rest."""
    steps = [node("MatMul", "x v", "h"), node("Relu", "h", "r"), node("MatMul", "r w", "y")]
    model = typed(build(steps, {"x": [64, 24]}, ["y"], {"v": floats(24, 24), "w": floats(24, 40, seed=1)}))
    plan = make_plan(model, recipe_of("weight-int8"), with_data=True)
    first = replace(plan, decisions=[one for one in plan.decisions if one.node.outputs[0].name == "h"])
    few = Weights(first, {}, *measured(model, first, floats(64, 24, seed=2))[::-1])
    rest = Weights(plan, {}, *measured(model, plan, floats(64, 24, seed=3) ** 3)[::-1])
    both, kept = few.completed(rest), len(few.chosen())
    for name, source in (("v", few), ("w", rest)):
        value = model.graph.values[name]
        found, expected = (made.codes(value, WeightSpec((0,)), None, name)[0] for made in (both, source))
        np.testing.assert_array_equal(found, expected)
        assert (found != Weights().codes(value, WeightSpec((0,)), None, name)[0]).any()
    assert len(few.chosen()) == kept == 1


def test_the_error_of_a_table_is_found_once_for_all_variants(monkeypatch):
    """A table of 30,000 words took 0.2 s in each of 37 variants of an encoder."""
    table = floats(30, 8)
    model = typed(build([node("Gather", "w i", "y")], {"x": [2]}, ["y"], {"w": table, "i": np.zeros(3, np.int64)}))
    value, coding, weights = model.graph.values["w"], WeightSpec((1,)), Weights()
    codes, scales = weights.codes(value, coding, None, "n")
    found = weights.error(value, coding, "n")
    assert found == pytest.approx(float(np.square(codes * scales - table).sum(dtype=np.float64)))
    monkeypatch.setattr(weights_module.np, "square", None)
    assert weights.error(model.copy().graph.values["w"], coding, "n") == found
    assert Weights().error(value, coding, "n") == found  # and for all trials, which have codes of their own


def test_the_whole_way_is_deterministic():
    weight = np.random.default_rng(3).standard_normal((32, 48)).astype(np.float32)
    proto = build([node("MatMul", "x w", "y")], {"x": [8, 32]}, ["y"], {"w": weight})
    first, second = (quantize_in_memory(proto, "dynamic-int8").data for _ in range(2))
    assert first == second


def test_a_weight_that_is_read_in_different_groups_is_served_by_what_is_known_beforehand():
    nodes = [node("Conv", "x w", "a"), node("Concat", "x x", "z", axis=1), node("Conv", "z w", "b", group=2)]
    model = typed(build(nodes, {"x": [1, 6, 9, 9]}, ["a", "b"], {"w": floats(64, 6, 3, 3)}))
    plan = make_plan(model, recipe_of("weight-int8"), with_data=True)
    layers = MeasuredLayers([decision.node for decision in plan.decisions if decision.form])
    stats = calibrate(model, layers.values, [{"x": floats(1, 6, 9, 9)}], kinds=layers.kinds)
    (job,) = rounding_jobs(plan, {}, stats, layers).values()
    assert len(job.readers) == 2
    assert job.moments.assumed


@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    axes=st.sampled_from([(1,), (0,), (0, 1)]),
    factor=st.sampled_from([0.01, 0.5, 1.0, 1.5]),
    zeros=st.booleans(),
)
def test_what_is_remembered_without_a_least_scale_is_what_is_made_with_it(seed, axes, factor, zeros):
    weight = floats(6, 5, seed=seed)
    if zeros:
        weight[2], weight[:, 3] = 0, 0
    model = typed(build([node("MatMul", "x w", "y")], {"x": [2, 6]}, ["y"], {"w": weight}))
    value, coding = model.graph.values["w"], WeightSpec(axes)
    plain = Weights().codes(value, coding, None, "n_y")
    minimum = np.median(plain[1]) * np.float32(factor) * np.ones_like(plain[1])
    expected = Weights().codes(value, coding, minimum, "n_y")
    weights = Weights()
    weights.codes(value, coding, None, "n_y")
    for again in (weights.codes(value, coding, minimum, "n_y"), weights.codes(value, coding, minimum, "n_y")):
        for made, wanted in zip(again, expected, strict=True):
            np.testing.assert_array_equal(made, wanted)
    floor = np.where(weight.any(axis=axes, keepdims=True), np.maximum(plain[1], minimum), minimum)
    np.testing.assert_array_equal(expected[1], floor)
    np.testing.assert_array_equal(expected[0], np.rint(weight / np.where(floor, floor, 1)))
