"""Outliers added in float: the float model stays what it is, and plans leave their product alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rescale_support import build, difference, run, sqnr

from onnxq.calibration.calibrate import calibrate
from onnxq.ir import Model, Patch, commit, infer_types, parse
from onnxq.lowering.rewrite import rewrite
from onnxq.pipeline.quantize import quantize
from onnxq.planning.outlier_channels import OutlierClip, Range, adds_outliers
from onnxq.planning.planner import Override, Plan, make_plan, plan_again
from onnxq.planning.recipe import load_recipe
from onnxq.rescaling.cross_layer import OUTLIERS
from onnxq.rescaling.outlier_split import add_outlier_product, clip, excess
from onnxq.search.budget import Budget
from onnxq.stages.measure import choose_qparams
from onnxq.verification.ort_graph import read_fusion
from tests.helpers import recipe_of

WIDTH, COLUMNS = 32, 40
SENTENCE = "it adds outlier channels in float"
LAYERS = {
    "MatMul": [("MatMul", ["z", "w"], ["y"])],
    "MatMul and bias": [("MatMul", ["z", "w"], ["h"]), ("Add", ["h", "b"], ["y"])],
    "bias and MatMul": [("MatMul", ["z", "w"], ["h"]), ("Add", ["b", "h"], ["y"])],
    "MatMul and an Add that is no bias": [("MatMul", ["z", "w"], ["h"]), ("Add", ["h", "h"], ["y"])],
    "MatMul whose result others read, too": [
        ("MatMul", ["z", "w"], ["h"]),
        ("Add", ["h", "b"], ["y"]),
        ("Neg", ["h"], ["y2"]),
    ],
    "Gemm": [("Gemm", ["z", "w", "b"], ["y"])],
    "Gemm with everything": [("Gemm", ["z", "t", "b"], ["y"], {"transB": 1, "alpha": 0.5, "beta": 2.0})],
    "several readers": [
        ("MatMul", ["z", "w"], ["h"]),
        ("Add", ["h", "b"], ["y"]),
        ("Gemm", ["z", "t", "b"], ["y2"], {"transB": 1}),
        ("MatMul", ["z", "w"], ["y3"]),
        ("Tanh", ["z"], ["y4"]),
    ],
}


def layer(name: str, opset: int, *, far: Sequence[int] = (3,)) -> Model:
    """Layers that read `z`, whose channels `far` reach a hundred times further than the others."""
    random = np.random.default_rng(0)
    size = np.where(np.isin(np.arange(WIDTH), far), 100, 1).astype(np.float32)
    nodes = [("Mul", ["x", "size"], ["z"]), *LAYERS[name]]
    known = {
        "size": size,
        "w": random.standard_normal((WIDTH, COLUMNS)).astype(np.float32),
        "t": random.standard_normal((COLUMNS, WIDTH)).astype(np.float32),
        "b": random.standard_normal(COLUMNS).astype(np.float32),
    }
    read = {source for _, inputs, *_ in nodes for source in inputs}
    outputs = [made for _, _, (made,), *_ in nodes if made.startswith("y")]
    weights = {given: array for given, array in known.items() if given in read}
    return build(nodes, ["n", WIDTH], weights, outputs=outputs, opset=opset)


def readers(model: Model):
    return [n for n in model.graph.nodes if n.op_type in ("MatMul", "Gemm")]


def separate(model: Model, channels: Sequence[int], bounds: Range) -> None:
    """Let all layers read `z` clipped, and add what is beyond."""
    value = model.graph.values["z"]
    patch = Patch(model.graph, readers(model)[0], "a test")
    read = clip(patch, value, bounds, model.opset, "z_clipped")
    outliers = excess(patch, value, channels, bounds, model.opset)
    for node in readers(model):
        transposed = node.attribute("transB", 0) if node.op_type == "Gemm" else 0
        weight = node.inputs[1].constant.numpy()
        patch.rewire(node, 0, read)
        add_outlier_product(patch, node, outliers, (weight.T if transposed else weight)[list(channels)])
    commit([patch])
    infer_types(model)


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("name", list(LAYERS))
@settings(max_examples=25)
@given(
    channels=st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=5, unique=True).map(sorted),
    seed=st.integers(0, 99),
    signs=st.sampled_from([(-1, 1), (0, 1), (-1, 0)]),
)
def test_the_float_model_computes_the_same(name, opset, channels, seed, signs):
    model = layer(name, opset, far=channels)
    x = np.random.default_rng(seed).uniform(*signs, (9, WIDTH)).astype(np.float32)
    reference = run(model, {"x": x})
    others = np.delete(x, channels, axis=1)
    low, high = min(others.min(), np.float32(0)), max(others.max(), np.float32(0))
    count = len(readers(model))
    separate(model, channels, Range(low, high))
    onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model.serialize()), strict_mode=True)
    *found, clipped = run(model.serialize(extra_outputs=[model.graph.values["z_clipped"]]), {"x": x})
    assert difference(reference, found) < 1e-5
    assert clipped.min() >= low
    assert clipped.max() <= high
    assert sum(map(adds_outliers, model.graph.nodes)) == count
    assert [n.op_type for n in model.graph.nodes].count("Gather") == 1, "all readers share it"


@pytest.mark.parametrize("name", ["MatMul and bias", "bias and MatMul"])
def test_the_bias_stays_right_behind_its_product(name):
    """Onnxruntime computes an Add with the integer product only where it follows at once."""
    model = layer(name, 17)
    separate(model, [3], Range(np.float32(-1), np.float32(1)))
    product = next(n for n in model.graph.nodes if n.op_type == "MatMul" and not adds_outliers(n))
    (bias,) = product.outputs[0].consumers()
    assert bias.op_type == "Add"
    assert "b" in [source.name for source in bias.inputs]
    assert product.outputs[0].name == "h_without_outliers", "it is not what the float model calls h"
    assert model.graph.values["y"].producer.inputs[0].producer is bias


def test_a_bias_in_a_body_is_left_there():
    """What a body computes cannot take the place of a result outside."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,32] z, bool taken) => (float[n,40] y)
    <float[32,40] w, float[40] b> {
        h = MatMul (z, w)
        y = If (taken) <then_branch = t () => (float[n,40] p) { p = Add (h, b) },
                        else_branch = e () => (float[n,40] q) { q = Neg (b) }>
    }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    arrays = {"w": random.standard_normal((WIDTH, COLUMNS)), "b": random.standard_normal(COLUMNS)}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    model = parse(proto.SerializeToString())
    infer_types(model)
    before = model.serialize()
    separate(model, (3,), (-1.0, 1.0))
    z = random.uniform(-1, 1, (5, WIDTH)).astype(np.float32) * np.where(np.arange(WIDTH) == 3, 100, 1)
    feeds = {"z": z.astype(np.float32), "taken": np.array(True)}
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], run(before, feeds)[0], rtol=1e-4, atol=1e-4)


def test_a_result_that_others_read_is_complete_before_they_do():
    model = layer("MatMul whose result others read, too", 17)
    separate(model, [3], Range(np.float32(-1), np.float32(1)))
    (bias,) = [n for n in model.graph.nodes if "b" in [source.name for source in n.inputs if source]]
    assert bias.inputs[0].name == "h"
    assert bias.inputs[0].producer.inputs[1].producer.op_type == "MatMul"


@pytest.mark.parametrize(
    ("clipped", "kind", "read", "product", "wanted"),
    [
        ("x", "Sub", ["x", "c"], ["d", "w"], True),
        ("x", "Sub", ["c", "x"], ["d", "w"], False),
        ("x", "Add", ["x", "c"], ["d", "w"], False),
        ("x", "Sub", ["x", "c"], ["w", "d"], False),
        ("e", "Sub", ["x", "c"], ["d", "w"], False),
    ],
)
def test_only_what_is_beyond_a_range_is_taken_for_outliers(clipped, kind, read, product, wanted):
    nodes = [
        ("Neg", ["x"], ["e"]),
        ("Clip", [clipped, "low", "high"], ["c"]),
        (kind, read, ["d"]),
        ("MatMul", product, ["y"]),
    ]
    model = build(nodes, [4, 4], {"w": np.ones((4, 4), np.float32), "low": np.float32(-1), "high": np.float32(1)})
    assert [adds_outliers(n) for n in model.graph.nodes] == [False, False, False, wanted]


@pytest.mark.parametrize("recipe", ["auto", "static-int8", "dynamic-int8", "weight-int8"])
def test_plans_keep_the_product_float(recipe):
    model = layer("MatMul and bias", 17)
    separate(model, [3, 5], Range(np.float32(-1), np.float32(1)))
    plan = make_plan(model, load_recipe(recipe), with_data=recipe != "dynamic-int8", costs_count=False)
    products = {adds_outliers(d.node): d for d in plan.decisions if d.node.op_type == "MatMul"}
    assert (products[True].scheme, products[True].reason) == (None, SENTENCE)
    assert products[False].scheme is not None, "the layer itself is quantized"


BOUNDS = Range(np.float32(-1), np.float32(1))
ALONE = {"y": "h_without_outliers", "y2": "y2_float", "y3": "y3_float"}  # the products themselves, by their outputs
ROWS = Override("dynamic-int8", "a test", (("activation_granularity", "row"),))


def rewritten(choices: dict[str, Override]) -> Model:
    """Several layers that read `z`, all of them static but for these choices."""
    model = layer("several readers", 17)
    separate(model, [3], BOUNDS)
    clipped = {"z_clipped": OutlierClip(WIDTH, (3,), BOUNDS)}
    recipe = load_recipe("static-int8")
    plan = plan_again(model, Plan(recipe, choices, clipped=clipped), costs_count=False)
    near = np.random.default_rng(0).uniform(-1, 1, (99, WIDTH)).astype(np.float32)
    return rewrite(model, plan, choose_qparams(plan, calibrate(model, plan.calibrated(), [{"x": near}])))


@pytest.mark.parametrize("names", [["y"], ["y2"], ["y3"], ["y", "y3"], ["y", "y2", "y3"]])
@pytest.mark.parametrize(
    ("choice", "least"), [(Override("float", "a test"), np.inf), (Override("weight-int8", "a test"), 40), (ROWS, 30)]
)
def test_nothing_but_static_codes_clips_the_other_channels(choice, least, names):
    """Data may go further than any that calibration saw."""
    reference, static = layer("several readers", 17), rewritten({})
    model = rewritten({ALONE[name]: choice for name in names})
    far = {"x": np.random.default_rng(1).uniform(-5, 5, (9, WIDTH)).astype(np.float32)}
    expected, others, given = (
        dict(zip(("y", "y2", "y3", "y4"), run(m, far), strict=True)) for m in (reference, static, model)
    )
    for name in given:
        if name not in names:
            assert np.array_equal(given[name], others[name]), "other layers stay as they are"
        elif least == np.inf:
            assert np.array_equal(given[name], expected[name]), "outliers are nothing of their own any more"
        else:
            assert sqnr(expected[name], given[name]) > least > sqnr(expected[name], others[name])
    kinds = [n.op_type for n in model.graph.nodes]
    still_added = 3 - len(names) * (choice.scheme == "float")
    assert sum(map(adds_outliers, model.graph.nodes)) == still_added
    assert kinds.count("Clip") == (still_added > 0) + (len(names) < 3), "one for outliers, one for static codes"
    assert kinds.count("Max") == kinds.count("Min") + (choice is ROWS) == (choice.scheme != "float") + (choice is ROWS)


@pytest.mark.parametrize("scheme", ["float", "weight-int8"])
def test_a_clip_of_the_model_itself_stays(scheme):
    """That it looks like ours does not make it ours."""
    model = layer("MatMul", 17)
    separate(model, [3], BOUNDS)
    far = {"x": np.full((2, WIDTH), 5, np.float32)}
    reference = run(model, far)
    plan = make_plan(
        model, load_recipe("weight-int8"), with_data=False, choices={"y_float": Override(scheme, "a test")}
    )
    assert difference(reference, run(rewrite(model, plan, {}), far)) < 0.02


def test_a_search_that_returns_a_layer_to_float_lets_go_of_the_clip(tmp_path):
    onnx.save(towering(17), tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    samples = [{"x": random.standard_normal((8, 8, 256)).astype(np.float32)} for _ in range(12)]
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=samples, budget=Budget(min_sqnr=69.7))
    assert OUTLIERS.format(1) in report.notes
    assert report.counts()["weight-int8"] == 1
    far = {"x": samples[0]["x"] * 3}
    reference, result = (run((tmp_path / name).read_bytes(), far)[0] for name in ("m.onnx", "q.onnx"))
    assert sqnr(reference, result) > 65


def towering(opset: int) -> onnx.ModelProto:
    """An activation whose channel 5 reaches two hundred times further than the others, and a layer with a bias."""
    random = np.random.default_rng(0)
    width = columns = 256
    size = np.where(np.arange(width) == 5, 200, 1).astype(np.float32)
    model = build(
        [
            ("Mul", ["x", "size"], ["g"]),
            ("Softsign", ["g"], ["s"]),
            ("Mul", ["s", "size"], ["z"]),
            ("MatMul", ["z", "w"], ["h"]),
            ("Add", ["h", "b"], ["y"]),
            ("Tanh", ["z"], ["y2"]),
        ],
        ["n", 8, width],
        {
            "size": size,
            "w": random.standard_normal((width, columns)).astype(np.float32),
            "b": random.standard_normal(columns).astype(np.float32),
        },
        outputs=["y", "y2"],
        opset=opset,
    )
    return onnx.ModelProto.FromString(model.serialize())


@pytest.mark.parametrize(
    ("recipe", "opset"),
    [(load_recipe("auto"), 17), (load_recipe("static-int8"), 17), (recipe_of("static-int8", granularity="tensor"), 10)],
)
def test_a_quantized_layer_computes_in_integers_and_nothing_is_clipped(tmp_path, recipe, opset):
    onnx.save(towering(opset), tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    samples = [{"x": random.standard_normal((8, 8, 256)).astype(np.float32)} for _ in range(12)]
    report = quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx", samples=samples)
    made = onnx.load(tmp_path / "q.onnx")
    assert made.opset_import[0].version == opset
    assert OUTLIERS.format(1) in report.notes
    clips = [n.input[0] for n in made.graph.node if n.op_type == "Clip"]
    assert clips == ["z_outliers"], "the codes end where the other Clip did"
    found = read_fusion((tmp_path / "q.onnx").read_bytes())
    assert [found.kernels[name] for name in ("QuantizeLinear", "MatMulIntegerToFloat", "MatMul in float")] == [1, 1, 1]
    assert found.unfused == ()
    reference, result = (run((tmp_path / name).read_bytes(), samples[0])[0] for name in ("m.onnx", "q.onnx"))
    assert sqnr(reference, result) > 30


def test_what_is_quantized_at_run_time_is_never_clipped(tmp_path):
    """Data may go further than any that calibration saw; only static ranges end there."""
    onnx.save(towering(17), tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    samples = [{"x": random.standard_normal((8, 8, 256)).astype(np.float32)} for _ in range(12)]
    recipe = load_recipe("dynamic-int8")
    report = quantize(tmp_path / "m.onnx", recipe, output=tmp_path / "q.onnx", samples=samples)
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert "DynamicQuantizeLinear" in kinds
    assert "Clip" not in kinds
    assert not any(note.startswith(OUTLIERS[:14]) for note in report.notes)
