"""Files of a run: default names, outputs that must not be replaced, and data that are given twice or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import build, node

from onnxq.errors import DataError, NothingToQuantize, OutputError
from onnxq.ir import Model, infer_types, load
from onnxq.stages.files import check_result_path, objection_to, open_data, refuse_own_output


@pytest.fixture
def model(tmp_path: Path) -> Model:
    path = tmp_path / "m.onnx"
    path.write_bytes(build([node("Relu", "x", "y")], {"x": [1, 2]}).SerializeToString())
    model = load(path)
    infer_types(model)
    return model


def test_a_result_of_onnxq_is_not_quantized_again(model: Model) -> None:
    refuse_own_output(model)
    model.metadata["onnxq_version"] = "1"
    with pytest.raises(NothingToQuantize, match="quantized already"):
        refuse_own_output(model)


def test_the_model_is_no_output_even_by_force(model: Model, tmp_path: Path) -> None:
    assert model.path is not None
    for force in (False, True):
        with pytest.raises(OutputError):
            check_result_path(model, model.path, force=force)
    assert objection_to(model, model.path, force=True) is not None
    assert objection_to(model, tmp_path / "q.onnx", force=False) is None


def test_an_old_result_is_replaced_by_force_alone(model: Model, tmp_path: Path) -> None:
    old = tmp_path / "q.onnx"
    old.write_bytes(b"old")
    assert objection_to(model, old, force=False) is not None
    assert objection_to(model, old, force=True) is None
    assert objection_to(model, old, force=True, reads=[old]) is not None


def test_a_file_of_weights_is_in_the_way_where_weights_get_one(model: Model, tmp_path: Path) -> None:
    output, weights = tmp_path / "q.onnx", tmp_path / "q.onnx.data"
    weights.write_bytes(b"old")
    assert objection_to(model, output, force=False) is None
    assert objection_to(model, output, force=False, external=True) is not None
    assert objection_to(model, output, force=True, external=True) is None
    weights.unlink()
    weights.mkdir()
    found = objection_to(model, output, force=True, external=True)
    assert "q.onnx.data is a folder" in str(found)


def test_data_are_given_once(model: Model) -> None:
    rows = np.ones((6, 2), np.float32)
    assert open_data(model, [], None, None) is None
    with pytest.raises(DataError, match="both files and samples"):
        open_data(model, ["data"], {"x": rows}, None)
    with pytest.raises(DataError, match="no data is given"):
        open_data(model, [], None, 3)
    opened = open_data(model, [], {"x": rows}, 3)
    assert opened is not None
    assert len(list(opened)) == 3
