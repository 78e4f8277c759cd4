"""Constants are stored in the narrowest type that holds them exactly, and results stay the same to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import NONE, build, changed_alike, floats, node

from onnxq.ir.storage import residency
from onnxq.optimize import narrow_constants as module
from onnxq.optimize.narrow_constants import LEAST, narrow_constants
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.rounding import block_grids

SIZE = 64


def gathered(indices: np.ndarray) -> onnx.ModelProto:
    return build([node("GatherElements", "x i", "y", axis=0)], {"x": [SIZE, SIZE]}, ["y"], {"i": indices}, 17)


def added(table: np.ndarray) -> onnx.ModelProto:
    return build([node("Add", "x t", "y")], {"x": [SIZE, SIZE]}, ["y"], {"t": table}, 17)


def narrowed(proto: onnx.ModelProto) -> tuple[dict[str, np.dtype], int]:
    feeds = {"x": floats(SIZE, SIZE, seed=2)}
    made, count = changed_alike(proto, narrow_constants, feeds, levels=(NONE,))
    return {t.name: onnx.numpy_helper.to_array(t).dtype for t in made.graph.initializer}, count


@pytest.mark.parametrize(("low", "high", "dtype", "expected"), [
    (0, 63, np.int64, "uint8"),
    (-64, 63, np.int64, "int8"),
    (0, 63, np.int32, "uint8"),
])  # fmt: skip
def test_indices_are_stored_in_a_byte(low: int, high: int, dtype: type, expected: str) -> None:
    indices = np.random.default_rng(0).integers(low, high + 1, (SIZE, SIZE)).astype(dtype)
    assert narrowed(gathered(indices)) == ({f"i_{expected}": np.dtype(expected)}, 1)


@pytest.mark.parametrize(("table", "expected"), [
    (floats(SIZE, SIZE) > 0, "uint8"),
    (np.rint(floats(SIZE, SIZE) * 9) + 0, "int8"),
    (floats(SIZE, SIZE).astype(np.float16), "float16"),
])  # fmt: skip
def test_tables_that_need_no_more_bits(table: np.ndarray, expected: str) -> None:
    assert narrowed(added(table.astype(np.float32)))[0] == {f"t_{expected}": np.dtype(expected)}


@pytest.mark.parametrize("table", [
    np.rint(floats(SIZE, SIZE)) * np.float32(-0.0),  # zeros of both signs
    np.where(floats(SIZE, SIZE) > 0, np.finfo(np.float32).min, np.float32(0)),  # a mask
    np.where(np.eye(SIZE) > 0, np.float32(1 + 2**-20), np.float32(0)),  # one element needs all of its bits
    np.abs(floats(256, seed=1))[np.random.default_rng(2).integers(0, 256, (SIZE, SIZE))],  # as scales of few bits are
])  # fmt: skip
def test_few_values_are_places_in_a_table(table: np.ndarray) -> None:
    values = np.unique(table.astype(np.float32).view(np.uint32))
    found, count = narrowed(added(table.astype(np.float32)))
    assert (found, count) == ({"t_uint8": np.dtype("uint8"), "t_values": np.dtype("float32")}, 1)
    assert len(values) <= 256


@pytest.mark.parametrize("table", [
    floats(SIZE, SIZE),  # needs all of its bits
    np.where(floats(SIZE, SIZE) > 2, floats(SIZE, SIZE), np.rint(99 * floats(SIZE, SIZE)) / 3),  # 300 values
    np.zeros(LEAST // 4 + 8, np.float32)[: SIZE],  # too small to gain anything
])  # fmt: skip
def test_others_stay_as_they_are(table: np.ndarray) -> None:
    assert narrowed(added(table))[1] == 0


def test_what_is_a_graph_output_or_has_no_reader_stays() -> None:
    proto = build(
        [node("Relu", "x", "y")], {"x": [SIZE, SIZE]}, ["y", "t"], {"t": np.ones((SIZE, SIZE), np.float32)}, 17
    )
    assert narrowed(proto)[1] == 0


def test_a_file_shrinks_by_its_indices_and_says_what_is_left(tmp_path: Path) -> None:
    """Two thirds of a speech enhancer were indices; of a model of long names, most is left."""
    indices = np.random.default_rng(0).integers(0, SIZE, (SIZE, SIZE)).astype(np.int64)
    nodes = [node("GatherElements", "x i", "g", axis=0), node("MatMul", "g w", "y")]
    proto = build(nodes, {"x": [SIZE, SIZE]}, ["y"], {"i": indices, "w": floats(SIZE, 64)}, 17)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    report = quantize(tmp_path / "m.onnx", "weight-int8", output=tmp_path / "q.onnx")
    assert report.output_bytes < 0.3 * report.source_bytes
    assert not any(note.startswith("the file is") for note in report.notes)
    proto.graph.doc_string = "d" * 60_000
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    report = quantize(tmp_path / "m.onnx", "weight-int8", output=tmp_path / "q.onnx", force=True)
    (said,) = [note for note in report.notes if note.startswith("the file is 0.")]
    assert "of constants in 8 bit or less" in said
    assert said.endswith(" of nodes and names")


def test_scales_of_a_large_model_are_places_in_tables_and_its_own_constants_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = build(
        [node("MatMul", "x w", "m"), node("Add", "m t", "n"), node("MatMul", "n v", "y")],
        {"x": [8, 256]},
        ["y"],
        {"w": floats(256, 256), "t": np.rint(9 * floats(8, 256, seed=1)), "v": floats(256, 256, seed=2)},
        17,
    )
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    source.write_bytes(proto.SerializeToString())
    monkeypatch.setattr(residency, "LARGE", 0)
    monkeypatch.setattr(block_grids, "LEAST_SHARING", 1024)
    feeds = {"x": floats(8, 256, seed=3)}
    models, results = [], []
    for least in (LEAST, 1 << 30):
        monkeypatch.setattr(module, "LEAST", least)
        quantize(source, in_blocks(4), samples=[feeds], output=output, force=True)
        models.append(onnx.load(output))
        results.append(ort.InferenceSession(output).run(None, feeds)[0])
    few, many = ({t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} for model in models)
    assert few["w_scale_uint8"].nbytes == 2048
    assert few["v_scale_float16"].nbytes == 4096  # a head of 8 bits
    assert [many[f"{name}_scale"].nbytes for name in "wv"] == [8192, 8192]
    assert few["t"].dtype == np.float32
    np.testing.assert_array_equal(*results)
