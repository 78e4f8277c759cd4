"""Large models, made out of small ones by moving the limits: segments give what the whole gives."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, graph, node

from onnxq.calibration.calibrate import calibrate
from onnxq.data.samples import input_specs, wrap_samples
from onnxq.errors import ModelError
from onnxq.ir import infer_types, load, parse, save
from onnxq.ir.passes import normalise
from onnxq.ir.segment import cut_segments
from onnxq.ir.storage import residency
from onnxq.pipeline import quantize as pipeline
from onnxq.planning.recipe import in_blocks
from onnxq.rounding import weights
from onnxq.rounding.jobs import solve_in_parts
from onnxq.runtime import segmented, session
from onnxq.runtime.session import SessionError, open_session
from onnxq.verification.compare import check_wellformed, compare
from onnxq.verification.families import LATENCIES
from onnxq.verification.user_metric import compare_metric, measure_metric

SAMPLES = Path(__file__).parents[2] / "sample_models"
MODELS = sorted(SAMPLES.glob("*.onnx"))


@pytest.fixture
def tiny(monkeypatch):
    """Let every model be large, weights of 256 bytes stay out, and segments be of 4 kB."""
    monkeypatch.setattr(residency, "LARGE", 0)
    monkeypatch.setattr(segmented, "SEGMENT", 4096)
    monkeypatch.setattr(segmented, "BESIDE", 256)
    monkeypatch.setattr("onnxq.ir.storage.scratch_file.SPOOLED", 256)
    monkeypatch.setattr(weights, "SPOOLED", 256)


def blocks(count=6, grid=0.0):
    """A residual block for each count: one value crosses between blocks, three inside. Weights lie on a grid."""
    nodes, constants, x = [], {}, "x"
    for b in range(count):
        constants |= {
            f"u{b}": on_grid(floats(16, 32, seed=b), grid),
            f"d{b}": on_grid(floats(32, 16, seed=b + 99), grid),
        }
        nodes += [node("MatMul", f"{x} u{b}", f"h{b}"), node("Relu", f"h{b}", f"r{b}")]
        nodes += [node("MatMul", f"r{b} d{b}", f"o{b}"), node("Add", f"{x} o{b}", f"x{b}" if b < count - 1 else "y")]
        x = f"x{b}"
    return build(nodes, {"x": ["N", 16]}, weights=constants)


def on_grid(array, grid):
    """Round to multiples of a power of two, so that float32 sums of products are exact; 0 leaves all as it is."""
    return np.rint(array / np.float32(grid)) * np.float32(grid) if grid else array


def without_latencies(path):
    """The bytes of a file but for predicted latencies, which large models have none of."""
    proto = onnx.load(path)
    kept = [entry for entry in proto.metadata_props if entry.key != LATENCIES]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto.SerializeToString(deterministic=True)


def loaded(proto):
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model


def test_cuts_lie_where_one_value_crosses():
    segments = cut_segments(loaded(blocks()), 2 * 4096)
    assert [len(segment.nodes) for segment in segments] == [8, 8, 8]
    assert [[v.name for v in s.inputs] for s in segments] == [["x"], ["x1"], ["x3"]]
    assert [[v.name for v in s.outputs] for s in segments] == [["x1"], ["x3"], ["y"]]
    assert [[v.name for v in s.constants] for s in segments][1] == ["u2", "d2", "u3", "d3"]


def test_a_cast_of_a_constant_is_beside_its_reader_and_is_folded_there(tiny):
    proto = blocks(3)
    casts = []
    for array in list(proto.graph.initializer):
        narrow = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(array).astype(np.float16), f"{array.name}_16")
        casts.append(onnx.helper.make_node("Cast", [narrow.name], [array.name], to=1))
        array.CopyFrom(narrow)
    nodes = [*casts, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = loaded(proto)
    segments = cut_segments(model, 5 * 2048)
    assert [len(each.nodes) for each in segments] == [6, 6, 6]
    assert [[v.name for v in each.inputs] for each in segments] == [["x"], ["x0"], ["x1"]]
    parts = open_session(model)
    assert isinstance(parts, segmented.StreamedSession)
    assert all(part.opened is not None for part in parts._parts)
    feeds = {"x": floats(3, 16)}
    expected = open_session(proto.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(parts.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_turned_table_stays_where_it_is(tiny):
    """As that of a tied head, which onnxruntime would turn in advance, over a copy."""
    nodes = [node("Gather", "table ids", "x"), node("Transpose", "table", "turned"), node("MatMul", "x turned", "y")]
    proto = build(nodes, {"ids": (onnx.TensorProto.INT64, ["N"])}, weights={"table": floats(64, 16)})
    feeds = {"ids": np.arange(5)}
    expected = open_session(proto.SerializeToString()).run(None, feeds)[0]
    parts = open_session(loaded(proto))
    assert isinstance(parts, segmented.StreamedSession)
    assert all(part.opened is not None for part in parts._parts)
    np.testing.assert_allclose(parts.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_what_a_run_has_freed_goes_back_to_the_system_though_the_session_stays_open(tiny, monkeypatch):
    handed_back = []
    monkeypatch.setattr(segmented, "trim_heap", handed_back.append)
    parts = open_session(session.InSegments(loaded(blocks()), checked=False), exact=True)
    assert isinstance(parts, segmented.StreamedSession)
    parts.run(None, {"x": floats(5, 16)})
    assert all(part.opened is not None for part in parts._parts)
    assert handed_back == [part.nbytes for part in parts._parts]


@pytest.mark.parametrize("several", [1, 3])
def test_samples_side_by_side_give_what_each_gives_alone(several, tiny, monkeypatch):
    monkeypatch.setattr(segmented, "WAYS", ((True, ()),))  # sessions over copies do not stay open
    parts = open_session(session.InSegments(loaded(blocks()), checked=False))
    assert isinstance(parts, segmented.StreamedSession)
    load, loads = parts._load, []
    monkeypatch.setattr(parts, "_load", lambda part: loads.append(part) or load(part))
    samples = [{"x": floats(5, 16, seed=seed)} for seed in range(several)]
    found = list(session.run_side_by_side(parts, ["y"], samples, lambda place, got: (place, got[0])))
    assert len(loads) == len(parts._parts) > 2
    assert [place for place, _ in found] == list(range(several))
    for sample, (_, array) in zip(samples, found, strict=True):
        assert np.array_equal(parts.run(["y"], sample)[0], array)


def test_samples_beyond_those_that_run_together_keep_their_places(tiny):
    parts = open_session(session.InSegments(loaded(blocks()), checked=False))
    samples = [{"x": floats(5, 16, seed=seed)} for seed in range(session.TOGETHER + 2)]
    found = list(session.run_side_by_side(parts, ["y"], samples, lambda place, got: (place, got[0])))
    assert [place for place, _ in found] == list(range(len(samples)))
    for sample, (_, array) in zip(samples, found, strict=True):
        assert np.array_equal(parts.run(["y"], sample)[0], array)


def test_a_cast_that_distant_nodes_read_is_in_each_of_their_segments(tiny):
    proto = blocks(3)
    first, *_, last = (array for array in proto.graph.initializer if array.name.startswith("u"))
    narrow = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(first).astype(np.float16), "shared_16")
    proto.graph.node.insert(0, onnx.helper.make_node("Cast", ["shared_16"], ["shared"], to=1))
    for each in proto.graph.node:
        each.input[:] = ["shared" if name in (first.name, last.name) else name for name in each.input]
    for array in (first, last):
        proto.graph.initializer.remove(array)
    proto.graph.initializer.append(narrow)
    model = loaded(proto)
    segments = cut_segments(model, 4 * 2048)
    assert len(segments) > 1
    assert [sum(each.op_type == "Cast" for each in part.nodes) for part in (segments[0], segments[-1])] == [1, 1]
    assert all("shared" not in [v.name for v in (*part.inputs, *part.outputs)] for part in segments)
    feeds = {"x": floats(3, 16)}
    expected = open_session(proto.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(open_session(model).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_weight_of_places_in_a_table_is_made_beside_its_reader(tiny):
    proto = blocks(3)
    places, table = np.random.default_rng(0).integers(0, 9, (16, 32)).astype(np.uint8), floats(9, seed=5)
    index = next(i for i, each in enumerate(proto.graph.initializer) if each.name == "u2")
    del proto.graph.initializer[index]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for a, n in ((places, "p"), (table, "t")))
    for each in (node("Gather", "t i", "u2"), node("Cast", "p", "i", to=6)):
        proto.graph.node.insert(0, each)  # far from what reads it
    model = loaded(proto)
    segments = cut_segments(model, 4 * 2048)
    assert [[each.op_type for each in part.nodes][:2] for part in segments][-1] == ["Cast", "Gather"]
    assert [[v.name for v in part.inputs] for part in segments] == [["x"], ["x1"]]
    feeds = {"x": floats(3, 16)}
    expected = open_session(proto.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(open_session(model).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_no_cut_where_the_type_of_what_crosses_is_unknown():
    proto = blocks(2)
    proto.graph.node.insert(4, onnx.helper.make_node("Mystery", ["x0"], ["z"], domain="my"))
    proto.graph.node[5].input[0] = "z"
    proto.opset_import.add(domain="my", version=1)
    assert all("z" not in [v.name for v in s.inputs] for s in cut_segments(loaded(proto), 1))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("optimize", ["none", "all"])
def test_segments_give_what_the_whole_gives(path, optimize, tiny):
    model = load(path)
    normalise(model)
    infer_types(model)
    taps = [v for n in model.graph.nodes for v in n.outputs if v is not None and v.dtype == 1 and not v.is_output]
    names = [v.name for v in (*taps, *model.graph.outputs)]
    whole = open_session(model.serialize(extra_outputs=taps), optimize=optimize)
    parts = open_session(model, optimize=optimize, taps=taps)
    assert (
        len(cut_segments(model, segmented.SEGMENT)) > 1 or path.stem == "digits_if"
    )  # its weights are inside the bodies
    assert [(i.name, i.type) for i in parts.get_inputs()] == [(i.name, i.type) for i in whole.get_inputs()]
    outputs = {o.name: o.type for o in whole.get_outputs()}
    assert {o.name: o.type for o in parts.get_outputs()}.items() <= outputs.items()
    with np.load(SAMPLES / "digits_test.npz") as file:
        feeds = {i.name: file[i.name][:3] for i in whole.get_inputs()}
    for name, expected, got in zip(names, whole.run(names, feeds), parts.run(names, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_bodies_shared_weights_and_passing_inputs(tiny):
    body = {name: graph([node("MatMul", "a w", f"{name}_o")], {}, [f"{name}_o"], {}) for name in ("t", "e")}
    proto = build(
        [
            node("MatMul", "x w", "a"),
            node("If", "c", "b", then_branch=body["t"], else_branch=body["e"]),
            node("MatMul", "b w", "y"),
        ],
        {"x": [3, 32], "c": (onnx.TensorProto.BOOL, [])},
        weights={"w": floats(32, 32, scale=0.1)},
    )
    proto.graph.output.add().CopyFrom(proto.graph.input[0])
    proto.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("w", 1, [32, 32]))
    proto.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("unread", 1, [1]))
    model = loaded(proto)
    feeds = {"x": floats(3, 32), "c": np.array(True), "unread": np.zeros(1, np.float32)}
    del proto.graph.output[1]  # onnxruntime refuses an input that is an output
    whole = open_session(proto.SerializeToString()).run(None, feeds)
    parts = open_session(model)
    assert [i.name for i in parts.get_inputs()] == ["x", "c", "unread"]
    y, x, w = parts.run(None, feeds)
    np.testing.assert_allclose(y, whole[0], rtol=1e-5, atol=1e-6)
    assert x is feeds["x"]
    assert w.tolist() == whole[1].tolist()


@pytest.mark.parametrize("recipe", ["dynamic-int8", "static-int8", "weight-int8"])
@pytest.mark.parametrize(("external", "rounding"), [(False, "nearest"), (True, "nearest"), (True, "output-error")])
def test_a_large_model_gives_the_bytes_of_a_small_one(recipe, external, rounding, tmp_path, tiny, monkeypatch):
    # Sums are exact: onnxruntime calibrates large models in float32, the evaluator small ones in float64
    save(parse(blocks(2, 0.25).SerializeToString()), tmp_path / "m.onnx", external_data=external)
    monkeypatch.setattr("onnxq.ir.storage.files.EXTERNAL_MINIMUM", 64)
    samples = [{"x": on_grid(floats(4, 16, seed=seed), 0.25)} for seed in range(4)]
    # The search for codes of a large model is shorter
    monkeypatch.setattr(
        weights,
        "solve_in_parts",
        lambda jobs: solve_in_parts({key: replace(job, quick=False) for key, job in jobs.items()}),
    )
    reports = {}
    for limit, name in ((0, "large"), (1 << 30, "small")):
        monkeypatch.setattr(residency, "LARGE", limit)
        chosen = tmp_path / "r.toml"
        chosen.write_text(
            f'name = "r"\ndescription = "r"\nscheme = "{recipe}"\nranges = "minmax"\nrounding = "{rounding}"\n'
            "smoothing = false\n",
            encoding="utf-8",
        )
        out = tmp_path / f"{name}.onnx"
        reports[name] = pipeline.quantize(tmp_path / "m.onnx", chosen, output=out, samples=samples)
    assert without_latencies(tmp_path / "large.onnx") == without_latencies(tmp_path / "small.onnx")
    large, small = (reports[name].comparison for name in ("large", "small"))
    assert large is not None
    assert small is not None
    assert large.latency is None
    assert small.latency is not None
    assert large.worst_sqnr == pytest.approx(small.worst_sqnr, abs=0.1)
    assert {p.name for p in tmp_path.iterdir()} - {"m.onnx.data"} == {"m.onnx", "large.onnx", "small.onnx", "r.toml"}


def test_calibration_in_segments_measures_the_same(tiny):
    model = loaded(blocks())
    values = [v for n in model.graph.nodes for v in n.outputs if v is not None]
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(3)]
    parts = calibrate(model, values, samples)
    residency.LARGE = 1 << 30
    whole = calibrate(model, values, samples)
    for value in values:
        for one, other in zip(whole[value.name], parts[value.name], strict=True):
            for name, array in one.arrays().items():
                if array.dtype.kind == "i":  # onnxruntime runs segments: a value may lie beyond the edge of its bin
                    assert np.abs(np.cumsum(array - other.arrays()[name])).max() <= 1
                else:
                    np.testing.assert_allclose(array, other.arrays()[name], rtol=1e-3, atol=1e-3)


def test_paths_of_large_models_are_run_in_segments(tmp_path, tiny):
    path = tmp_path / "m.onnx"
    path.write_bytes(blocks().SerializeToString())
    assert isinstance(open_session(path), segmented.StreamedSession)
    found = compare(path, path, [{"x": floats(4, 16)}])
    assert found.worst_sqnr == float("inf")
    assert found.latency is None


@pytest.mark.parametrize("kept", [0, 1 << 30])
def test_packed_segments_compute_in_integers_as_the_whole_does(kept, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(segmented, "MOST_PACKED", kept)
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(blocks(3).SerializeToString())
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(8)]
    pipeline.quantize(path, in_blocks(4, 16), output=out, samples=samples)
    parts = open_session(out)
    assert isinstance(parts, segmented.StreamedSession)
    assert len({part.packs for part in parts._parts}) == 1
    assert all((part.opened is None) == (not kept) for part in parts._parts)
    exact, (found,) = open_session(out.read_bytes()).run(None, samples[0])[0], parts.run(None, samples[0])
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    rounded = np.abs(exact - open_session(path.read_bytes()).run(None, samples[0])[0]).max()
    assert np.abs(found - exact).max() < rounded / 100


def coded(kind, most):
    """A product of uint8 activations and of int8 codes, two neighbours of which are the largest."""
    codes = np.random.default_rng(0).integers(-64, 65, (16, 32)).astype(np.int8)
    codes[4:6, 3] = most
    constants = {"a": np.float32(0.1), "b": np.float32(0.02), "z": np.uint8(9), "w": codes}
    nodes = [node("QuantizeLinear", "x a z", "q"), node("DequantizeLinear", "w b", "d")]
    nodes += [node("DequantizeLinear", "q a z", "v"), node(kind, "v d", "y")]
    return build(nodes, {"x": ["N", 16]}, weights=constants)


@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
@pytest.mark.parametrize("most", [64, 127])
def test_weights_that_cannot_saturate_stay_where_they_are_on_processors_that_saturate(kind, most, tiny, monkeypatch):
    proto, opened = coded(kind, most), []
    x = {"x": np.full((3, 16), 50, np.float32)}
    expected = open_session(proto.SerializeToString(), exact=True).run(None, x)[0]
    load_native = segmented.load_native
    monkeypatch.setattr(segmented, "host_saturates", lambda: True)

    def load(model, settings, **how):
        opened.append(settings)
        return load_native(model, settings, **how)

    monkeypatch.setattr(segmented, "load_native", load)
    found = open_session(session.InSegments(loaded(proto), checked=False), exact=True).run(None, x)[0]
    assert [one.exact for one in opened] == [most == 127]  # and no way is tried that has to fail
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("optimize", ["none", "all"])
def test_segments_are_packed_where_scales_are_known_then(optimize, tmp_path, tiny):
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(blocks(3).SerializeToString())
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(8)]
    pipeline.quantize(path, in_blocks(4, 16), output=out, samples=samples)
    proto = onnx.load(out)
    expected = open_session(proto.SerializeToString()).run(None, samples[0])[0]
    scales = {node.input[2] for node in proto.graph.node if node.op_type == "MatMulNBits"}
    for array in proto.graph.initializer:
        if array.name in scales:
            stored = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(array).astype(np.float16), array.name)
            proto.graph.node.insert(0, onnx.helper.make_node("Cast", [f"{array.name}_16"], [array.name], to=1))
            stored.name += "_16"
            array.CopyFrom(stored)
    parts = open_session(loaded(proto), optimize=optimize)
    assert isinstance(parts, segmented.StreamedSession)
    assert {part.packs for part in parts._parts} == {optimize == "all"}
    found = parts.run(None, samples[0])[0]
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_what_a_large_model_became_is_run_in_segments_too(tmp_path, monkeypatch):
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    path.write_bytes(blocks().SerializeToString())
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(8)]
    pipeline.quantize(path, in_blocks(4, 16), output=out, samples=samples)
    monkeypatch.setattr(residency, "LARGE", load(out).weight_bytes)
    opened = []
    monkeypatch.setattr(
        session, "StreamedSession", lambda *a, **k: opened.append(a) or segmented.StreamedSession(*a, **k)
    )
    for quantized in (out, load(out), out.read_bytes()):
        compare(path, quantized, samples)
        assert len(opened) == 2
        opened.clear()
    compare(out, out, samples)
    assert not opened
    value = measure_metric(lambda outputs, labels: 1.0, path, wrap_samples(samples, input_specs(load(path))))
    assert value == 1.0
    opened.clear()
    compare_metric(lambda outputs, labels: 1.0, path, out, wrap_samples(samples, input_specs(load(path))))
    assert len(opened) == 2


def test_a_large_model_that_is_not_simplified_is_copied_once(tmp_path, tiny, monkeypatch):
    """Constants that are computed at each reading go to a file for what is judged and for what is compared."""
    path, stored = tmp_path / "m.onnx", []
    path.write_bytes(blocks().SerializeToString())
    monkeypatch.setattr("onnxq.pipeline.large_model.store_computed", lambda model, scratch: stored.append(model))
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(4)]
    pipeline.quantize(path, "static-int8", output=tmp_path / "o.onnx", samples=samples)
    before, *_, baseline = stored
    assert len(stored) == 3
    assert before is baseline


def test_what_does_not_load_is_a_sentence(tmp_path, tiny):
    proto = blocks()
    proto.graph.node[0].attribute.add(name="nonsense", type=1, f=1.0)
    with pytest.raises(SessionError, match="nonsense"):
        open_session(loaded(proto))
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="is not a readable ONNX model"):
        open_session(tmp_path / "m.onnx")
    save(parse(blocks().SerializeToString()), tmp_path / "e.onnx", external_data=True)
    (tmp_path / "e.onnx.data").unlink()
    with pytest.raises(ModelError, match="which cannot be read"):
        open_session(load(tmp_path / "e.onnx"))


def test_the_checker_sees_large_models_without_their_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(residency, "LARGE", 100)
    proto = blocks()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert check_wellformed(path) is None
    proto.graph.node[0].attribute.add(name="nonsense", type=1, f=1.0)
    path.write_bytes(proto.SerializeToString())
    assert "nonsense" in (check_wellformed(path) or "")
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_layers_of_large_models_are_compared(tmp_path, tiny):
    path = tmp_path / "m.onnx"
    path.write_bytes(blocks().SerializeToString())
    samples = [{"x": floats(4, 16, seed=seed)} for seed in range(4)]
    found = pipeline.quantize(path, "static-int8", output=tmp_path / "o.onnx", samples=samples, detailed=True)
    assert found.comparison is not None
    assert {"h0", "x3", "y"} <= {layer.tensor for layer in found.comparison.layers}
    assert found.activations


@pytest.mark.parametrize("large", [False, True])
def test_two_large_models_are_compared_one_after_the_other(tmp_path, monkeypatch, request, large):
    """Weights of both would be in memory together, such as two heads of half a gigabyte."""
    if large:
        request.getfixturevalue("tiny")
    path = tmp_path / "m.onnx"
    path.write_bytes(blocks().SerializeToString())
    running, most, meeting = [], [0], threading.Barrier(2, timeout=0.2)
    before = session.run_session

    def watched(*args):
        running.append(args)
        with suppress(threading.BrokenBarrierError):  # both get here if they run at the same time
            meeting.wait()
        most[0] = max(most[0], len(running))
        given = before(*args)
        running.pop()
        return given

    monkeypatch.setattr("onnxq.verification.compare.run_session", watched)
    assert compare(path, path, [{"x": floats(4, 16)}], latency=False).worst_sqnr == np.inf
    assert most == [1 if large else 2]
