"""Models that cannot be converted keep the forms that their opset has; layouts of one processor are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build, floats, node
from onnx import TensorProto, helper, numpy_helper

from onnxq import calibrate, prepare, quantize
from onnxq.errors import DataError, ModelError, NothingToQuantize
from onnxq.runtime.session import open_session, run_session

RNG = np.random.default_rng


def _weight(shape: tuple[int, ...], name: str) -> onnx.TensorProto:
    return numpy_helper.from_array((RNG(len(name)).standard_normal(shape) * 0.1).astype(np.float32), name)


def _unconvertible(path: Path, opset: int) -> None:
    """Write two Conv and a product: before opset 10 with an experimental operator, later with a sparse initializer."""
    made = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w_two"], ["d"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Flatten", ["d"], ["f"]),
        helper.make_node("MatMul", ["f", "w_three"], ["m"]),
    ]
    weights = [_weight((32, 3, 3, 3), "w"), _weight((64, 32, 3, 3), "w_two"), _weight((4096, 128), "w_three")]
    sparse = []
    if opset < 10:
        nodes.append(helper.make_node("DynamicSlice", ["m", "starts", "ends"], ["y"]))
        weights += [numpy_helper.from_array(np.array(v), n) for n, v in (("starts", [0, 0]), ("ends", [1, 128]))]
    else:
        nodes.append(helper.make_node("Add", ["m", "s"], ["y"]))
        values = numpy_helper.from_array(np.array([2.0], np.float32), "s")
        sparse = [helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([5])), [128])]
    inputs, outputs = made("x", TensorProto.FLOAT, [1, 3, 32, 32]), made("y", TensorProto.FLOAT, [1, 128])
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], weights, sparse_initializer=sparse)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6), path)


def _samples(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": RNG(seed).standard_normal((1, 3, 32, 32)).astype(np.float32)} for seed in range(count)]


@pytest.mark.parametrize(("opset", "computed"), [(9, False), (11, True)])
def test_a_model_that_cannot_be_converted_keeps_its_opset(tmp_path: Path, opset: int, computed: bool) -> None:
    _unconvertible(tmp_path / "m.onnx", opset)
    target = tmp_path / "q.onnx"
    report = quantize(tmp_path / "m.onnx", output=target, samples=_samples(4), fast=True)
    written = onnx.load(target)
    assert next(o.version for o in written.opset_import if o.domain == "") == opset
    assert any(note.startswith(f"kept opset {opset}, and what needs a newer one in float: ") for note in report.notes)
    pairs = [node for node in written.graph.node if node.op_type in ("QuantizeLinear", "QLinearConv")]
    assert bool(pairs) == computed
    assert target.stat().st_size < 0.4 * (tmp_path / "m.onnx").stat().st_size
    both = [open_session(path.read_bytes()) for path in (tmp_path / "m.onnx", target)]
    expected, got = (np.concatenate([run_session(s, ["y"], x)[0] for x in _samples(4)]) for s in both)
    assert 10 * np.log10((expected**2).sum() / ((expected - got) ** 2).sum()) > 30


def test_whoever_asks_for_one_form_is_refused_in_plain_words(tmp_path: Path) -> None:
    """`Op '%s' has no registered schema; cannot convert it from version %lld to %lld.DynamicSlice913`, users read."""
    _unconvertible(tmp_path / "m.onnx", 9)
    with pytest.raises(
        ModelError, match=r"to 13: no opset has the operator DynamicSlice \(node DynamicSlice of"
    ) as error:
        quantize(tmp_path / "m.onnx", "static-int8", output=tmp_path / "q.onnx", samples=_samples(2))
    assert error.value.hint == "Export it again with opset 13 or newer."
    assert not (tmp_path / "q.onnx").exists()


def _blocked(*after: onnx.NodeProto) -> onnx.ModelProto:
    """Make a Conv in blocks of channels, as onnxruntime writes it with all its optimizations, and nodes behind it."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], domain="com.microsoft.nchwc", strides=[4, 4]), *after]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 16, 32, 32]), (nodes[-1].output[0], None))
    )
    graph = helper.make_graph(nodes, "g", [x], [y], [_weight((64, 16, 4, 4), "w"), _weight((4096, 512), "v")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_layout_of_one_processor_is_warned_of() -> None:
    rows = [helper.make_node("Flatten", ["c"], ["f"]), helper.make_node("MatMul", ["f", "v"], ["y"])]
    (warning,) = prepare(_blocked(*rows), "dynamic-int8", with_data=False).warnings
    assert warning.code == "processor-layout"
    assert warning.message.startswith("1 node is in a layout that onnxruntime chose")
    assert "ORT_ENABLE_BASIC" in warning.remedy
    with pytest.raises(NothingToQuantize) as caught:
        quantize(_blocked())
    assert warning.message in caught.value.hint


def test_statistics_of_the_same_graph_with_other_weights_are_refused(tmp_path):
    def write(seed: int) -> str:
        weights = {"w": floats(32, 32, seed=seed)}
        proto = build([node("MatMul", "x w", "y")], {"x": [4, 32]}, ["y"], weights)
        path = tmp_path / "m.onnx"
        onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=1024)
        return str(path)

    samples = [{"x": floats(4, 32, seed=seed)} for seed in range(4)]
    source = write(1)
    calibrate(source, tmp_path / "stats.npz", samples=samples, recipe="static-int8")
    settings = {"samples": samples, "stats": tmp_path / "stats.npz", "fast": True}
    assert quantize(source, "static-int8", output=tmp_path / "one.onnx", **settings).counts() == {"static-int8": 1}
    before = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.data").unlink()
    source = write(2)
    assert (tmp_path / "m.onnx").read_bytes() == before
    with pytest.raises(DataError, match="belong to another model"):
        quantize(source, "static-int8", output=tmp_path / "two.onnx", **settings)
