"""Failures that other quantization tools are known for, each as a test of the right behaviour.

The numbers of the rows are those of our list of failures of other tools; the first line of every test says what the
failure is. Nothing here runs another tool.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import ALL, F, build, count_ops, floats, node, quantize_in_memory, run, sqnr, typed, unlike_kernel
from onnx import TensorProto, helper, numpy_helper
from verdict import quickly

import onnxq
from onnxq.calibration.calibrate import calibrate
from onnxq.calibration.im2col import Unfolding
from onnxq.calibration.ranges import choose_range
from onnxq.calibration.second_moments import LayerMoments
from onnxq.calibration.stats_file import fingerprint, save_stats
from onnxq.errors import CheckFailed, DataError, ModelError, NothingToQuantize, OnnxqError, RecipeError
from onnxq.ir import load
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import load_recipe, parse_recipe
from onnxq.rounding.jobs import RoundingJob, solve
from onnxq.runtime.memory import gc_disabled
from onnxq.stages.prepare import prepare


@pytest.fixture(autouse=True)
def without_timing() -> Iterator[None]:
    with quickly():
        yield


def matmul(k: int = 32, n: int = 24, opset: int = 17) -> onnx.ModelProto:
    return build([node("MatMul", "x w", "y")], {"x": [None, k]}, weights={"w": floats(k, n, seed=3)}, opset=opset)


def convs(depth: int, channels: int = 8, opset: int = 17) -> onnx.ModelProto:
    """Conv and Relu in turn on pictures of any size."""
    nodes, weights, last = [], {}, "x"
    for layer in range(depth):
        weights[f"w{layer}"] = floats(channels, channels, 3, 3, seed=layer, scale=0.12)
        nodes += [
            node("Conv", f"{last} w{layer}", f"c{layer}", pads=[1, 1, 1, 1]),
            node("Relu", f"c{layer}", f"r{layer}"),
        ]
        last = f"r{layer}"
    return build(nodes, {"x": ["n", channels, "h", "w"]}, [last], weights, opset)


def written(proto: onnx.ModelProto, folder: Path, **options: object) -> tuple[onnx.ModelProto, onnxq.Report]:
    """Quantize by the front door and read what was written."""
    folder.mkdir(exist_ok=True)
    source = folder / "m.onnx"
    source.write_bytes(proto.SerializeToString())
    report = onnxq.quantize(source, options.pop("recipe", "auto"), output=folder / "q.onnx", **options)  # type: ignore[arg-type]
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "q.onnx"]
    onnx.checker.check_model(str(folder / "q.onnx"), full_check=True)
    return onnx.load(folder / "q.onnx"), report


def agreement(proto: onnx.ModelProto, quantized: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """Least SQNR of the outputs in dB, the quantized model without and with optimisations."""
    expected = run(proto.SerializeToString(), feeds)
    data = quantized.SerializeToString()
    return min(
        sqnr(e, g) for got in (run(data, feeds), run(data, feeds, ALL)) for e, g in zip(expected, got, strict=True)
    )


def scales_of(quantized: onnx.ModelProto) -> set[float]:
    """Scales of the activations."""
    constants = {w.name: numpy_helper.to_array(w) for w in quantized.graph.initializer}
    return {float(constants[n.input[1]]) for n in quantized.graph.node if n.op_type == "QuantizeLinear"}


# -- the tool that everybody has --------------------------------------------------------------------------------------


def test_row_01_every_way_to_choose_a_range_is_another_one(tmp_path: Path) -> None:
    """The entropy method runs and gives the ranges of min-max."""
    x = floats(64, 32, seed=1)
    x[0, 0] = 60.0
    found = {}
    for method in ("minmax", "percentile", "mse"):
        recipe = parse_recipe(
            f'scheme = "static-int8"\nranges = "{method}"\npercentile = 99.9\nsmoothing = false', method
        )
        quantized, _ = written(matmul(), tmp_path / method, recipe=recipe, samples=[{"x": x}])
        (found[method],) = scales_of(quantized)
    assert found["minmax"] == pytest.approx((60.0 - x.min()) / 255, rel=1e-6)
    assert found["percentile"] < found["minmax"] / 4
    assert found["mse"] < found["minmax"]
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_row_02_no_calibration_sample_is_thrown_away(count: int) -> None:
    """A buffer that is full is cleared without being counted, whichever number divides the samples."""
    model = typed(matmul())
    samples = [{"x": floats(2, 32, seed=s, scale=1 + s)} for s in range(count)]
    stats = calibrate(model, [model.graph.values["x"], model.graph.values["y"]], samples)
    everything = np.concatenate([s["x"] for s in samples])
    assert choose_range(stats["x"], "minmax") == (everything.min(), everything.max())
    products = run(matmul().SerializeToString(), {"x": everything})[0]
    assert choose_range(stats["y"], "minmax") == pytest.approx((products.min(), products.max()), rel=1e-5)
    assert stats.samples == count


def test_row_03_memory_does_not_grow_with_the_samples() -> None:
    """Percentiles keep every activation of every sample: 12 layers take 161 MB for 8 samples, 594 MB for 64."""
    model = typed(convs(6, channels=16))
    values = [model.graph.values[f"r{layer}"] for layer in range(6)]
    picture = floats(1, 16, 64, 64)

    def measure(count: int) -> int:
        stats = calibrate(model, values, ({"x": picture} for _ in range(count)), threads=1)
        assert stats.samples == count
        assert np.isfinite(choose_range(stats["r5"], "percentile", percentile=99.9)).all()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = measure(8)
    assert measure(120) - before < 40_000  # kB; keeping 120 samples would take 190,000


@pytest.mark.parametrize("ranges", ["minmax", "percentile", "mse"])
def test_row_04_samples_differ_in_shape(ranges: str, tmp_path: Path) -> None:
    """Batches of different lengths crash all ways to choose a range but one."""
    samples = [{"x": floats(n, 8, h, w, seed=n)} for n, h, w in ((1, 8, 8), (3, 8, 12), (2, 16, 4))]
    recipe = parse_recipe(f'scheme = "static-int8"\nranges = "{ranges}"', ranges)
    quantized, report = written(convs(2), tmp_path, recipe=recipe, samples=samples)
    assert report.counts()["static-int8"] == 4
    assert min(agreement(convs(2), quantized, feeds) for feeds in samples) > 20


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("beta", [0.5, 0.0, -2.0])
def test_row_05_gemm_with_beta_is_right(mode: str, beta: float, tmp_path: Path) -> None:
    """The bias is added twice or once where beta says half of it: 0 dB, silently."""
    weights = {"w": floats(32, 24, seed=1), "b": floats(24, seed=2, scale=40)}
    proto = build([node("Gemm", "x w b", "y", beta=beta)], {"x": [None, 32]}, weights=weights)
    feeds = {"x": floats(16, 32, seed=5)}
    samples = [feeds] if mode == "static" else None
    quantized, report = written(proto, tmp_path, recipe=f"{mode}-int8", samples=samples)
    assert report.counts() == {f"{mode}-int8": 1}
    assert agreement(proto, quantized, feeds) > 35


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("alpha", [0.25, 3.0, -1.0])
def test_row_06_gemm_with_alpha_and_bias_is_right(mode: str, alpha: float, tmp_path: Path) -> None:
    """The bias is quantized with a scale that forgets alpha: 2.6 dB."""
    weights = {"w": floats(24, 32, seed=1), "b": floats(24, seed=2, scale=4)}
    proto = build([node("Gemm", "x w b", "y", alpha=alpha, transB=1)], {"x": [None, 32]}, weights=weights)
    feeds = {"x": floats(16, 32, seed=5)}
    samples = [feeds] if mode == "static" else None
    quantized, report = written(proto, tmp_path, recipe=f"{mode}-int8", samples=samples)
    assert report.counts() == {f"{mode}-int8": 1}
    assert agreement(proto, quantized, feeds) > 35


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_row_07_a_weight_of_several_readers_is_right_for_each(mode: str, tmp_path: Path) -> None:
    """A shared weight is transposed in place once for each Gemm that reads it."""
    nodes = [
        node("Gemm", "x w", "a", transB=1),
        node("Gemm", "a w", "b", transB=1),
        node("MatMul", "b w", "c"),
        node("Gemm", "c w", "y"),
    ]
    proto = build(nodes, {"x": [None, 32]}, ["y", "a"], {"w": floats(32, 32, seed=4, scale=0.2)})
    feeds = {"x": floats(16, 32, seed=5)}
    for only in ([], ["MatMul"]):
        quantized, _ = written(
            proto, tmp_path / f"{len(only)}", only=only, samples=[feeds] if mode == "static" else None
        )
        assert agreement(proto, quantized, feeds) > 28


@pytest.mark.parametrize("suffix", ["scale", "zero_point", "quantized", "dequantized", "cast", "int32"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight"])
def test_row_08_names_that_are_taken_are_left_alone(mode: str, suffix: str, tmp_path: Path) -> None:
    """An initializer that happens to be called `x_scale` is taken for the scale of `x`: 2 dB, in silence."""
    taken = {name: F(np.full((), 3.0 + i)) for i, name in enumerate((f"x_{suffix}", f"w_{suffix}", f"h_{suffix}"))}
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "p")]
    last = "p"
    for index, name in enumerate(taken):
        # right behind a product or another factor, they would go into that
        nodes += [node("Abs", last, f"t{index}"), node("Mul", f"t{index} {name}", f"y{index}")]
        last = f"y{index}"
    weights = {"w": floats(32, 32, seed=1), "v": floats(32, 24, seed=2), **taken}
    proto = build(nodes, {"x": [None, 32]}, [last], weights)
    feeds = {"x": floats(16, 32, seed=5)}
    quantized, _ = written(proto, tmp_path, recipe=f"{mode}-int8", samples=[feeds] if mode == "static" else None)
    assert agreement(proto, quantized, feeds) > 28
    kept = {w.name: numpy_helper.to_array(w) for w in quantized.graph.initializer}
    assert {name: kept[name] for name in taken} == taken


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("opset", [17, 19, 21])
def test_row_09_float16_gives_a_model_that_loads_or_a_sentence(opset: int, mode: str, tmp_path: Path) -> None:
    """A float16 model becomes one that no session loads."""
    proto = matmul(opset=opset)
    weight = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float16)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds = {"x": floats(16, 32, seed=5).astype(np.float16)}
    try:
        quantized, _ = written(proto, tmp_path, samples=[feeds] if mode == "static" else None)
    except NothingToQuantize as refusal:
        if "float16" not in refusal.message:
            raise
        assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    else:
        assert agreement(proto, quantized, feeds) > 28


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12])
@pytest.mark.parametrize("recipe", ["auto", "static-int8"])
def test_row_10_scales_per_channel_raise_an_old_opset(opset: int, recipe: str, tmp_path: Path) -> None:
    """Scales per channel are written into opset 11 or 12, whose DequantizeLinear has no axis: an invalid model."""
    proto, feeds = convs(2, channels=32, opset=opset), {"x": floats(1, 32, 12, 12)}
    quantized, report = written(proto, tmp_path, recipe=recipe, samples=[feeds])
    assert report.counts()["static-int8"] >= 2
    assert quantized.opset_import[0].version >= 13
    assert any("opset raised" in note for note in report.notes)
    assert agreement(proto, quantized, feeds) > 28


def correlated(seed: int, rows: int = 2048, n: int = 96) -> np.ndarray:
    """Inputs of which a few directions carry most."""
    mixing = np.random.default_rng(0).standard_normal((n // 8, n))
    random = np.random.default_rng(seed)
    return F(random.standard_normal((rows, n // 8)) @ mixing + 0.05 * random.standard_normal((rows, n)))


def layer_error(rows: np.ndarray, weight: np.ndarray, x: np.ndarray) -> float:
    return float(np.square(x @ (rows - weight).T).mean())


@pytest.mark.parametrize("bits", [8, 4])
def test_row_11_error_feedback_feeds_errors_back(bits: int) -> None:
    """An index transposed makes GPTQ the same as rounding to nearest, to 3e-8."""
    weight, moments = floats(40, 96, seed=7), LayerMoments(Unfolding(96), 96)
    for item in correlated(1).reshape(32, 64, 96):
        moments.add(item)
    chosen = solve(RoundingJob(weight, moments, bits=bits))
    limit = 2 ** (bits - 1) - 1
    step = np.abs(weight).max(axis=1, keepdims=True) / limit
    x = correlated(2)
    gain = layer_error(np.rint(weight / step) * step, weight, x) / layer_error(chosen.dequantized(), weight, x)
    assert 10 * np.log10(gain) > 6


def test_row_12_the_codes_that_were_chosen_are_the_ones_in_the_file(tmp_path: Path) -> None:
    """The result of GPTQ is quantized once more with other scales, which throws its grid away."""
    proto = matmul(96, 40)
    samples = [{"x": item} for item in correlated(1).reshape(32, 64, 96)]
    recipe = parse_recipe('scheme = "weight-int8"', "w8")
    quantized, _ = written(proto, tmp_path, recipe=recipe, samples=samples)
    (codes,) = (numpy_helper.to_array(w) for w in quantized.graph.initializer if w.data_type == TensorProto.INT8)
    weight = numpy_helper.to_array(proto.graph.initializer[0])
    moments = LayerMoments(Unfolding(96), 96)
    for sample in samples:
        moments.add(sample["x"])
    expected = solve(RoundingJob(weight.T, moments))
    assert expected.method == "output error"
    np.testing.assert_array_equal(codes, expected.codes.T)


@pytest.mark.parametrize(("n", "block"), [(384, 128), (96, 32), (80, 32), (33, 16)])
def test_row_13_any_number_of_blocks_is_fine(n: int, block: int) -> None:
    """An odd number of blocks in a row crashes the packing of zero points: width 384 in blocks of 128."""
    weight = floats(5, n, seed=7)
    found = solve(RoundingJob(weight, None, bits=4, block_size=block))
    blocks = -(-n // block)
    assert found.scales.shape == (5, blocks)
    steps = np.repeat(found.scales, block, axis=1)[:, :n]
    assert (np.abs(found.codes * steps - weight) <= 0.5001 * steps + np.abs(weight) * 0.2).all()


def test_row_14_without_data_a_conv_is_no_conv_integer(tmp_path: Path) -> None:
    """The default makes every Conv a ConvInteger with int8 weights, five times slower than float."""
    quantized, report = written(convs(3), tmp_path)
    assert "ConvInteger" not in count_ops(quantized)
    assert report.counts() == {"weight-int8": 3, "float": 3}
    feeds = {"x": floats(1, 8, 12, 12)}
    assert agreement(convs(3), quantized, feeds) > 28


def body(op_type: str) -> onnx.ModelProto:
    """A MatMul that stands in a branch of If, or in a Loop of three rounds."""
    weights = {"w": floats(32, 32, seed=1, scale=0.2)}
    inner = helper.make_graph(
        [node("MatMul", "x w", "t")], "then", [], [helper.make_tensor_value_info("t", 1, [16, 32])]
    )
    if op_type == "If":
        other = helper.make_graph(
            [node("Neg", "x", "e")], "else", [], [helper.make_tensor_value_info("e", 1, [16, 32])]
        )
        nodes = [node("If", "c", "y", then_branch=inner, else_branch=other)]
        return build(nodes, {"x": [16, 32], "c": (TensorProto.BOOL, [])}, weights=weights)
    loop = helper.make_graph(
        [node("MatMul", "state w", "next"), node("Identity", "go", "on")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [16, 32]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [16, 32]),
        ],
    )
    weights |= {"rounds": np.array(3, np.int64)}
    weights |= {"shape": np.array([16, 32])}
    nodes = [node("Loop", "rounds c x", "last", body=loop), node("Reshape", "last shape", "y")]
    return build(nodes, {"x": [16, 32], "c": (TensorProto.BOOL, [])}, weights=weights)


def from_constant_node() -> onnx.ModelProto:
    value = numpy_helper.from_array(floats(32, 32, seed=1), "v")
    return build([node("Constant", "", "w", value=value), node("MatMul", "x w", "y")], {"x": [16, 32]})


def in_a_function() -> onnx.ModelProto:
    function = helper.make_function(
        "mine", "Linear", ["a", "b"], ["c"], [node("MatMul", "a b", "c")], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Linear", ["x", "w"], ["y"], domain="mine", name="call")
    proto = build([node("MatMul", "x w", "y")], {"x": [16, 32]}, weights={"w": floats(32, 32, seed=1)})
    proto.graph.node[0].CopyFrom(call)
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    return proto


def recurrent(op_type: str) -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    weights = {"w": floats(1, gates * 16, 16, seed=1, scale=0.3), "r": floats(1, gates * 16, 16, seed=2, scale=0.3)}
    return build([node(op_type, "x w r", "y", hidden_size=16)], {"x": [4, 1, 16]}, weights=weights)


@pytest.mark.parametrize(
    "proto",
    [body("If"), body("Loop"), from_constant_node(), in_a_function(), *map(recurrent, ("LSTM", "GRU", "RNN"))],
    ids=["If", "Loop", "Constant", "function", "LSTM", "GRU", "RNN"],
)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_row_15_weights_are_found_wherever_they_are(proto: onnx.ModelProto, mode: str, tmp_path: Path) -> None:
    """Bodies, Constant nodes, functions, GRU and RNN stay float in silence, and the file grows."""
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    feeds: dict[str, np.ndarray] = {"x": floats(*shape, seed=3)}
    if len(proto.graph.input) > 1:
        feeds["c"] = np.array(True)
    quantized, report = written(proto, tmp_path, samples=[feeds] if mode == "static" else None)
    assert len(report.counts().keys() - {"float"}) == 1
    assert agreement(proto, quantized, feeds) > 28
    assert (tmp_path / "q.onnx").stat().st_size < (tmp_path / "m.onnx").stat().st_size + 2500


def test_row_15_what_stays_float_says_why(tmp_path: Path) -> None:
    """Nothing is quantized, and nothing is said but a general warning."""
    proto = build([node("MatMul", "x x", "h"), node("Softmax", "h", "y")], {"x": [8, 8]})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(NothingToQuantize, match="can be quantized: it has no weights"):
        onnxq.quantize(tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_row_16_static_mode_reaches_bodies(tmp_path: Path) -> None:
    """Static quantization never enters the branches of If, and crashes where it is told to."""
    proto = body("If")
    feeds = [{"x": floats(16, 32, seed=s), "c": np.array(s % 2 == 0)} for s in range(4)]
    quantized, report = written(proto, tmp_path, samples=feeds)
    plan = prepare(load(tmp_path / "m.onnx"), with_data=True).plan
    (branch,) = (decision for decision in plan.decisions if decision.node.op_type == "MatMul")
    assert branch.scheme is not None
    assert report.counts()[branch.scheme] == 1
    assert min(agreement(proto, quantized, one) for one in feeds) > 28


def test_row_17_no_file_is_touched_but_the_output(tmp_path: Path) -> None:
    """`m-inferred.onnx` beside the source is overwritten and deleted; a folder that is read-only stops the tool."""
    there, out, here = tmp_path / "there", tmp_path / "out", tmp_path / "here"
    for folder in (there, out, here):
        folder.mkdir()
    (there / "m.onnx").write_bytes(convs(2).SerializeToString())
    mine = ("m-inferred.onnx", "m.onnx.tmp", "m.data", "sym_shape_infer_temp.onnx")
    for folder in (there, out, here):
        for name in mine:
            (folder / name).write_text("mine")
    script = "import sys, onnxq; onnxq.quantize(sys.argv[1], output=sys.argv[2], fast=True)"
    source = str(there / "m.onnx")
    there.chmod(0o555)
    try:
        runs = [
            subprocess.Popen([sys.executable, "-c", script, source, str(out / f"{i}.onnx")], cwd=here) for i in range(2)
        ]
        assert [process.wait(120) for process in runs] == [0, 0]
    finally:
        there.chmod(0o755)
    assert sorted(path.name for path in there.iterdir()) == sorted(("m.onnx", *mine))
    assert sorted(path.name for path in here.iterdir()) == sorted(mine)
    assert sorted(path.name for path in out.iterdir()) == sorted(("0.onnx", "1.onnx", *mine))
    assert all((folder / name).read_text() == "mine" for folder in (there, out, here) for name in mine)
    assert (out / "0.onnx").read_bytes() == (out / "1.onnx").read_bytes()


def test_row_18_statistics_of_another_model_are_refused(tmp_path: Path) -> None:
    """A calibration cache of model A serves model B without a word: 0.3 dB."""
    for name, k in (("a", 32), ("b", 16)):
        (tmp_path / f"{name}.onnx").write_bytes(matmul(k).SerializeToString())
    prepared = prepare(load(tmp_path / "a.onnx"), "static-int8", with_data=True)
    stats = calibrate(prepared.model, prepared.plan.calibrated(), [{"x": floats(4, 32)}])
    save_stats(tmp_path / "a.npz", stats, fingerprint(prepared.source, stats.names))
    with pytest.raises(DataError, match="another model"):
        onnxq.quantize(tmp_path / "b.onnx", "static-int8", stats=tmp_path / "a.npz")
    assert onnxq.quantize(tmp_path / "a.onnx", "static-int8", stats=tmp_path / "a.npz").output is not None


def test_row_19_the_result_is_compared_before_it_is_written(tmp_path: Path) -> None:
    """Nothing is loaded, run or compared; the output may be anything."""
    feeds = {"x": floats(16, 32, seed=5)}
    _, report = written(matmul(), tmp_path / "fine", samples=[feeds])
    assert report.comparison is not None
    assert report.comparison.worst_sqnr > 28
    assert report.comparison.latency is not None
    (tmp_path / "m.onnx").write_bytes(matmul().SerializeToString())
    with pytest.raises(CheckFailed, match=r"200 dB asked for"):
        onnxq.quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=[feeds], budget=onnxq.Budget(200))
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("granularty = 'channel'", "unknown key 'granularty'"),
        ("[[rules]]\nop = 'Conv'\nrange = 'mse'", "unknown key 'range'"),
        ("scheme = 'int8'", "'scheme' cannot be \"int8\""),
    ],
)
def test_row_19_an_unknown_setting_is_an_error(text: str, sentence: str) -> None:
    """Options that do not exist, or stand behind the first of a list, are accepted without a word."""
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "mine")
    assert sentence in error.value.message
    assert error.value.hint


def test_row_20_time_is_linear_in_the_graph() -> None:
    """The graph is scanned for every node: 250, 500 and 1000 MatMuls take 1.6, 6.5 and 22.6 seconds."""

    def seconds(count: int) -> float:
        nodes = [node("MatMul", f"v{i} w", f"v{i + 1}") for i in range(count)]
        proto = build(nodes, {"v0": [1, 4]}, [f"v{count}"], {"w": floats(4, 4)})
        model = typed(proto)
        with gc_disabled():  # as the pipeline runs it: what other tests left behind would be scanned as well
            started = time.process_time()
            rewrite(model, make_plan(model, load_recipe("dynamic-int8"), with_data=False), {})
            return time.process_time() - started

    # Four times as many; scanning would take sixteen times as long
    assert any(seconds(1600) < 8 * seconds(400) for _ in range(3))


# -- other tools ------------------------------------------------------------------------------------------------------


def test_statistics_are_of_all_samples_not_of_the_first_batch(tmp_path: Path) -> None:
    """Only the first batch is looked at."""
    samples = [{"x": floats(4, 32, seed=s, scale=0.1 if s < 3 else 5.0)} for s in range(4)]
    quantized, _ = written(matmul(), tmp_path, recipe="static-int8", samples=samples)
    everything = np.concatenate([s["x"] for s in samples])
    (scale,) = scales_of(quantized)
    assert scale > 0.5 * float(np.ptp(everything)) / 255


def test_a_bias_with_zeros_in_it_is_kept(tmp_path: Path) -> None:
    """One zero in a bias stops the correction of the whole layer."""
    bias = np.where(np.arange(24) % 3, floats(24, seed=2, scale=4), 0).astype(F)
    nodes = [node("Conv", "x w b", "y", pads=[1, 1, 1, 1])]
    proto = build(nodes, {"x": [1, 8, 12, 12]}, weights={"w": floats(24, 8, 3, 3, seed=1), "b": bias})
    feeds = {"x": floats(1, 8, 12, 12, seed=5)}
    quantized, _ = written(proto, tmp_path, recipe="static-int8", samples=[feeds])
    expected, got = (run(p.SerializeToString(), feeds)[0] for p in (proto, quantized))
    assert sqnr(expected, got) > 28
    assert np.abs((got - expected).mean(axis=(0, 2, 3))).max() < 0.05


def test_functions_of_the_model_survive(tmp_path: Path) -> None:
    """Functions of the model are dropped when it is built anew; their calls stay behind."""
    proto, feeds = in_a_function(), {"x": floats(16, 32)}
    quantized, _ = written(proto, tmp_path, recipe="weight-int8")
    called = {(n.domain, n.op_type) for n in quantized.graph.node if n.domain}
    assert called <= {(f.domain, f.name) for f in quantized.functions}
    assert agreement(proto, quantized, feeds) > 28


def test_no_calibration_on_random_data(tmp_path: Path) -> None:
    """Without data, ranges are measured on random numbers."""
    (tmp_path / "m.onnx").write_bytes(convs(2).SerializeToString())
    with pytest.raises(DataError, match="needs data to calibrate with"):
        onnxq.quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx")
    report = onnxq.quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx")
    assert "static-int8" not in report.counts()


def test_types_at_the_border_and_inside_stay(tmp_path: Path) -> None:
    """A float32 model comes back in float16."""
    proto, feeds = convs(2), {"x": floats(1, 8, 12, 12)}
    quantized, _ = written(proto, tmp_path, samples=[feeds])
    assert [v.type for v in quantized.graph.input] == [v.type for v in proto.graph.input]
    assert [v.type.tensor_type.elem_type for v in quantized.graph.output] == [TensorProto.FLOAT]
    kinds = {w.data_type for w in quantized.graph.initializer}
    assert kinds <= {TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64}


def test_raising_the_opset_converts_the_meaning(tmp_path: Path) -> None:
    """The number in opset_import is raised, and a Softmax over all but the first axis becomes one over the last."""
    nodes = [node("Conv", "x w", "h"), node("Softmax", "h", "y")]
    proto = build(nodes, {"x": [1, 8, 4, 4]}, weights={"w": floats(8, 8, 1, 1, scale=0.2)}, opset=11)
    feeds = {"x": floats(1, 8, 4, 4)}
    quantized, _ = written(proto, tmp_path, recipe="static-int8", samples=[feeds])
    assert quantized.opset_import[0].version >= 13
    got = run(quantized.SerializeToString(), feeds)[0]
    assert got.sum() == pytest.approx(1.0, abs=1e-5)  # one distribution over channels and pixels together
    assert agreement(proto, quantized, feeds) > 28


def transformer(width: int = 64, tokens: int = 12) -> onnx.ModelProto:
    """One block: attention and two layers of MLP, each behind a LayerNormalization, with residuals that grow."""
    names = ["q", "k", "v", "o"]
    weights = {f"w{n}": floats(width, width, seed=i, scale=0.12) for i, n in enumerate(names)}
    weights |= {"up": floats(width, 4 * width, seed=8, scale=0.12), "down": floats(4 * width, width, seed=9, scale=0.1)}
    weights |= {"g": F(1 + 3 * (np.arange(width) == 5)), "s": floats(width, seed=11, scale=0.1)}
    weights |= {"mask": F(np.triu(np.full((tokens, tokens), -1e9), 1)), "root": F(np.array(width**0.5))}
    nodes = [
        node("LayerNormalization", "x g s", "n1"),
        *(node("MatMul", f"n1 w{n}", n) for n in "qkv"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "raw"),
        node("Div", "raw root", "scaled"),
        node("Add", "scaled mask", "masked"),
        node("Softmax", "masked", "attention", axis=-1),
        node("MatMul", "attention v", "mixed"),
        node("MatMul", "mixed wo", "out"),
        node("Add", "x out", "x1"),
        node("LayerNormalization", "x1 g s", "n2"),
        node("MatMul", "n2 up", "h"),
        node("Relu", "h", "hr"),
        node("MatMul", "hr down", "h2"),
        node("Add", "x1 h2", "y"),
    ]
    return build(nodes, {"x": [1, tokens, width]}, weights=weights)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_transformers_survive_the_defaults(mode: str, tmp_path: Path) -> None:
    """Quantizing every operator, residuals, masks and LayerNormalization too, takes a transformer to 4 dB or less."""
    proto = transformer()
    samples = [{"x": floats(1, 12, 64, seed=s, scale=2)} for s in range(8)]
    quantized, report = written(proto, tmp_path, samples=samples if mode == "static" else None)
    quantized_operators = {row.op_type for row in report.nodes if row.scheme}
    assert quantized_operators == {"MatMul"}
    assert min(agreement(proto, quantized, feeds) for feeds in samples) > 30


def test_the_float_baseline_gets_its_best_chance(tmp_path: Path) -> None:
    """Initializers that are graph inputs keep constants from being folded, and float looks up to 3.5 times slower."""
    proto = convs(2)
    for weight in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, list(weight.dims)))
    quantized, report = written(proto, tmp_path, samples=[{"x": floats(1, 8, 12, 12)}])
    assert [value.name for value in quantized.graph.input] == ["x"]
    assert any("from the graph inputs" in note for note in report.notes)


@pytest.mark.parametrize("recipe", ["auto", "static-int8", "dynamic-int8", "weight-int8"])
def test_no_dead_weights_and_no_debug_outputs_stay(recipe: str, tmp_path: Path) -> None:
    """Float weights that nobody reads stay in the file, which grows; taps for calibration stay in the graph."""
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("Gemm", "r v b", "y")]
    weights = {"w": floats(64, 64, seed=1), "v": floats(64, 64, seed=2), "b": floats(64, seed=3)}
    proto = build(nodes, {"x": [4, 64]}, weights=weights)
    quantized, _ = written(proto, tmp_path, recipe=recipe, samples=[{"x": floats(4, 64)}])
    read = {name for one in quantized.graph.node for name in one.input} | {v.name for v in quantized.graph.output}
    assert {w.name for w in quantized.graph.initializer} <= read
    assert [v.name for v in quantized.graph.output] == ["y"]
    assert (tmp_path / "q.onnx").stat().st_size < 0.45 * (tmp_path / "m.onnx").stat().st_size


def test_a_model_inside_an_if_shrinks(tmp_path: Path) -> None:
    """Nobody quantizes a model whose nodes stand inside an If; two tools make its file grow."""
    _, report = written(wide_if(), tmp_path)
    assert report.counts()["float"] == 1
    assert (tmp_path / "q.onnx").stat().st_size < 0.35 * (tmp_path / "m.onnx").stat().st_size


def wide_if() -> onnx.ModelProto:
    """Both branches of an If hold a product, weights and all."""
    branches = {}
    for index, name in enumerate(("then_branch", "else_branch")):
        branches[name] = helper.make_graph(
            [node("MatMul", f"x w{index}", f"y{index}")],
            name,
            [],
            [helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, [4, 96])],
            [numpy_helper.from_array(floats(96, 96, seed=index), f"w{index}")],
        )
    return build([node("If", "c", "y", **branches)], {"x": [4, 96], "c": (TensorProto.BOOL, [])})


def test_what_no_graph_optimiser_would_touch_is_left_byte_for_byte() -> None:
    """Rebuilding a model loses what the tool does not know."""
    proto = matmul()
    proto.metadata_props.add(key="labels", value="a,b")
    proto.graph.node.append(node("Custom", "y", "z"))
    proto.graph.node[-1].domain = "mine"
    proto.opset_import.append(helper.make_opsetid("mine", 3))
    proto.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    model = typed(proto)
    made = onnx.ModelProto.FromString(
        rewrite(model, make_plan(model, load_recipe("dynamic-int8"), with_data=False), {}).serialize()
    )
    assert {entry.key: entry.value for entry in made.metadata_props} == {"labels": "a,b"}
    assert [(o.domain, o.version) for o in made.opset_import] == [("", 17), ("mine", 3)]
    assert made.graph.node[-1] == proto.graph.node[-1]


def test_biases_beyond_int32_widen_the_scale_of_their_channel_only(tmp_path: Path) -> None:
    """A bias that overflows int32 wraps around, or costs all channels their precision."""
    weight = unlike_kernel(floats(16, 8, 1, 1, seed=1))
    weight[3] *= 1e-7
    bias = floats(16, seed=2, scale=3)
    bias[3] = 500.0
    proto = build([node("Conv", "x w b", "y")], {"x": [1, 8, 6, 6]}, weights={"w": weight, "b": bias})
    feeds = {"x": floats(1, 8, 6, 6, seed=5, scale=0.01)}
    quantized, _ = written(proto, tmp_path, recipe="static-int8", samples=[feeds])
    expected, got = (run(p.SerializeToString(), feeds)[0] for p in (proto, quantized))
    assert np.abs(got - expected).max() < 1.01 * 503 / 255 / 2 + 1e-3  # half a step of the output's range
    made = {w.name: numpy_helper.to_array(w) for w in quantized.graph.initializer}
    (codes,) = (array for array in made.values() if array.dtype == np.int8 and array.ndim == 4)
    assert (np.abs(codes[np.arange(16) != 3]).max(axis=(1, 2, 3)) > 110).all()


def test_nothing_is_refused_with_a_traceback(tmp_path: Path) -> None:
    """Every failure above was an exception from deep inside, or none at all: ours derive from one class."""
    for error in (CheckFailed, DataError, ModelError, NothingToQuantize, RecipeError):
        assert issubclass(error, OnnxqError)
    (tmp_path / "m.onnx").write_bytes(b"no model")
    done = subprocess.run(
        [sys.executable, "-m", "onnxq", "quantize", str(tmp_path / "m.onnx")],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_a_recipe_of_quantize_in_memory_and_of_the_front_door_agree(tmp_path: Path) -> None:
    """The library gives another model than the command line."""
    feeds = {"x": floats(16, 32, seed=5)}
    one = quantize_in_memory(matmul(), "dynamic-int8")
    two, _ = written(matmul(), tmp_path, recipe="dynamic-int8")
    np.testing.assert_array_equal(one.run(feeds)[0], run(two.SerializeToString(), feeds)[0])
