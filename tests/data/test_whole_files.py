"""A folder of files whose rows only run together, beside one whose rows are samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxq.data.reading import PLAIN, ModelFacts
from onnxq.data.samples import Samples, open_samples
from onnxq.data.validation import input_specs
from onnxq.ir.model import load
from onnxq.ir.shape_inference.types import infer_types

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x) => (float[1, K] y) <int64[2] four = {%s}> {
  a = Reshape(x, four)
  y = ReduceMean<axes = [0], keepdims = 1>(a)
}"""


def open_rows(folder: Path, shape: str, rows: int, files: int = 3) -> Samples:
    onnx.save(onnx.parser.parse_model(MODEL % shape), folder / "m.onnx")
    model = load(folder / "m.onnx")
    infer_types(model)
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    for k in range(files):
        np.savez(folder / "data" / f"{k}.npz", x=rng.normal(size=(rows, 3)).astype(np.float32))
    return open_samples([folder / "data"], input_specs(model), PLAIN, ModelFacts.of(model))


def test_rows_that_only_run_together_are_one_sample(tmp_path):
    samples = open_rows(tmp_path, "4, -1", 4)
    assert [sample["x"].shape for sample in samples] == [(4, 3)] * 3
    assert samples.notes == ("the model does not run on one row of 0.npz: each file is one sample",)


def test_rows_that_run_are_samples(tmp_path):
    samples = open_rows(tmp_path, "1, -1", 4)
    assert [sample["x"].shape for sample in samples] == [(1, 3)] * 12
    assert samples.notes == ()


@pytest.mark.parametrize(("rows", "files"), [(5, 3), (4, 1)])
def test_a_model_that_runs_on_neither_or_one_file_keeps_rows(tmp_path, rows, files):
    assert {sample["x"].shape for sample in open_rows(tmp_path, "4, -1", rows, files)} == {(1, 3)}
