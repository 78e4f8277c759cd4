"""Metrics of the user's own, and the labels they see."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from onnxq.data.samples import InputSpec, open_samples, wrap_samples
from onnxq.errors import DataError, ModelError
from onnxq.pipeline.quantize import quantize
from onnxq.progress import Silent
from onnxq.search.budget import Budget
from onnxq.verification.user_metric import check_labels, compare_metric, load_metric, measure_metric
from tests.helpers import build, floats, node

X = InputSpec("x", TensorProto.FLOAT, ("n", 4))
MODEL = build([node("MatMul", "x w", "y")], {"x": ["n", 4]}, weights={"w": np.eye(4, 3, dtype=np.float32)})
MODULE = """
import numpy as np

def accuracy(outputs, labels):
    chosen = np.concatenate(outputs["y"]).argmax(axis=-1)
    return (chosen == np.concatenate(labels["_y"])).mean()

def text(outputs, labels):
    return "good"

def nan(outputs, labels):
    return float("nan")

def missing(outputs, labels):
    return labels["_nowhere"]

def leaves(outputs, labels):
    raise SystemExit(0)

constant = 3
"""


def encoded(negative: bool = False) -> bytes:
    made = MODEL
    if negative:
        made = build([node("MatMul", "x w", "y")], {"x": ["n", 4]}, weights={"w": -np.eye(4, 3, dtype=np.float32)})
    return bytes(made.SerializeToString())


def save(path: Path, rows: int = 6, **labels: np.ndarray) -> Path:
    np.savez(path, x=floats(rows, 4), **labels)
    return path


def right(rows: int = 6) -> np.ndarray:
    return floats(rows, 4)[:, :3].argmax(axis=-1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_metric.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_outputs_and_labels_come_in_order(here: Path) -> None:
    data = open_samples([save(here / "d.npz", _y=right())], [X])
    metric = load_metric("own_metric:accuracy")
    assert measure_metric(metric, encoded(), data) == 1.0
    found = compare_metric("own_metric:accuracy", encoded(), encoded(negative=True), data)
    assert (found.name, found.float_value) == ("own_metric:accuracy", 1.0)
    assert found.quantized_value < 0.5
    assert found.drop == 1.0 - found.quantized_value


def test_what_a_metric_is_given(here: Path) -> None:
    seen = []

    def metric(outputs, labels):
        seen.append((outputs, labels))
        return np.float32(2.5)

    first, second = save(here / "a.npz", 2, _y=np.array([5, 6])), save(here / "b.npz", 1, _y=np.array([7]))
    assert measure_metric(metric, encoded(), open_samples([first, second], [X])) == 2.5
    ((outputs, labels),) = seen
    assert [array.shape for array in outputs["y"]] == [(1, 3)] * 3
    np.testing.assert_allclose(outputs["y"][2][0], floats(1, 4)[0, :3])
    assert [array.tolist() for array in labels["_y"]] == [[5, 6], [7]]


def test_progress(here: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    data = open_samples([save(here / "d.npz", 2)], [X])
    measure_metric(lambda outputs, labels: 0, encoded(), data, progress=lambda *at: seen.append(at))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("accuracy", "does not name a function"),
        ("own_metric:constant", "is int, not a function"),
        ("own_metric:nothing", "own_metric:nothing: there is no 'nothing' in "),
        ("no_module:f", "cannot be imported: ModuleNotFoundError"),
        ("script:f", "cannot be imported: SystemExit: 0"),
    ],
)
def test_what_is_no_metric(here: Path, name: str, sentence: str) -> None:
    (here / "script.py").write_text("import sys; sys.exit(0)")
    with pytest.raises(DataError, match=sentence):
        load_metric(name)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("missing", "own_metric:missing failed: KeyError: '_nowhere'"),
        ("text", "own_metric:text gives str, not a number"),
        ("nan", "own_metric:nan gives nan"),
        ("leaves", "own_metric:leaves failed: SystemExit: 0"),
    ],
)
def test_a_metric_that_fails(here: Path, function: str, sentence: str) -> None:
    data = open_samples([save(here / "d.npz")], [X])
    name = f"own_metric:{function}"
    with pytest.raises(DataError, match=sentence):
        compare_metric(name, encoded(), encoded(), data)


def test_a_metric_without_labels_is_told_so(here: Path) -> None:
    data = open_samples([save(here / "d.npz")], [X])
    unlabelled = wrap_samples(list(data), [X])
    with pytest.raises(DataError) as caught:
        compare_metric("own_metric:missing", encoded(), encoded(), unlabelled)
    assert "have no labels" in caught.value.hint


def test_a_model_that_does_not_run(here: Path) -> None:
    data = open_samples([save(here / "d.npz")], [X])
    with pytest.raises(ModelError, match="cannot load or run the model"):
        measure_metric(lambda outputs, labels: 0, b"nonsense", data)


def test_labels_of_the_samples_in_use(here: Path) -> None:
    data = open_samples([save(here / "a.npz", 4, _y=np.arange(4)), save(here / "b.npz", 4, _y=np.arange(4, 8))], [X])
    assert [array.tolist() for array in data.limit(6).labels()["_y"]] == [[0, 1, 2, 3], [4, 5]]
    assert [array.tolist() for array in data.limit(4).labels()["_y"]] == [[0, 1, 2, 3]]
    assert [array.tolist() for array in data.labels()["_y"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_labels_of_batches_of_fixed_size(here: Path) -> None:
    batched = InputSpec("x", TensorProto.FLOAT, (2, 4))
    data = open_samples([save(here / "d.npz", 7, _y=np.arange(7))], [batched])
    assert [sample["x"].shape for sample in data] == [(2, 4)] * 3
    assert data.labels()["_y"][0].tolist() == [0, 1, 2, 3, 4, 5]  # the seventh row is left over
    assert data.limit(2).labels()["_y"][0].tolist() == [0, 1, 2, 3]


def test_labels_of_stacks(here: Path) -> None:
    np.savez(here / "d.npz", x=floats(3, 2, 4), _y=np.arange(6).reshape(3, 2))
    data = open_samples([here / "d.npz"], [X])
    assert data.limit(2).labels()["_y"][0].tolist() == [[0, 1], [2, 3]]


def test_labels_of_pairs_of_samples_are_whole_or_refused(here: Path) -> None:
    data = open_samples([save(here / "d.npz", 6, _pairs=np.arange(3))], [X])
    assert data.labels()["_pairs"][0].tolist() == [0, 1, 2]
    assert data.limit(6).labels()["_pairs"][0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"'_pairs' in d\.npz has 3 rows for 6 samples"):
        data.limit(4).labels()
    assert len(list(data.limit(4))) == 4  # who asks for no labels is not bothered


def test_labels_that_python_gives(here: Path) -> None:
    made = [{"x": floats(1, 4), "_y": [i]} for i in range(3)]
    data = wrap_samples(made, [X])
    assert [array.tolist() for array in data.labels()["_y"]] == [[0], [1], [2]]
    assert [array.tolist() for array in data.limit(2).labels()["_y"]] == [[0], [1]]


def test_labels_in_npy_files_of_a_folder(here: Path) -> None:
    (here / "set").mkdir()
    mask = InputSpec("mask", TensorProto.FLOAT, ("n", 4))
    for name, array in (("x", floats(3, 4)), ("mask", floats(3, 4)), ("_y", np.arange(3))):
        np.save(here / "set" / f"{name}.npy", array)
    assert open_samples([here / "set"], [X, mask]).labels()["_y"][0].tolist() == [0, 1, 2]


def test_an_input_that_starts_with_an_underscore_is_no_label(here: Path) -> None:
    odd = InputSpec("_x", TensorProto.FLOAT, ("n", 4))
    np.savez(here / "d.npz", _x=floats(2, 4), _y=np.arange(2))
    assert list(open_samples([here / "d.npz"], [odd]).labels()) == ["_y"]


def test_labels_that_are_python_objects_are_refused(here: Path) -> None:
    np.savez(here / "d.npz", x=floats(2, 4), _y=np.array([{}, {}], dtype=object))
    data = open_samples([here / "d.npz"], [X])
    assert len(list(data)) == 2
    with pytest.raises(DataError, match=r"d\.npz cannot be read"):
        data.labels()


def test_a_metric_that_is_not_there_is_refused_before_the_model_is_run(here: Path) -> None:
    model = here / "m.onnx"
    model.write_bytes(encoded())

    def samples():
        raise AssertionError("they are not to be read")

    with pytest.raises(DataError, match="own_metric:nothing: there is no 'nothing'"):
        quantize(model, "static-int8", samples=samples, budget=Budget(metric="own_metric:nothing", max_drop=1))


def test_a_metric_that_takes_something_else_is_refused_before_the_run() -> None:
    samples = wrap_samples([{"x": np.zeros((1, 2), np.float32)}], [InputSpec("x", 1, ("n", 2))])
    with pytest.raises(DataError, match="cannot be called with outputs and labels: too many positional arguments"):
        check_labels(lambda: 1.0, samples)
    check_labels(lambda outputs, labels, more=1: 1.0, samples)


def test_labels_of_too_few_rows_are_refused_before_the_run(tmp_path: Path) -> None:
    inputs = [InputSpec("x", 1, ("n", 2))]
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 2), np.float32), _label=np.arange(6))
    with pytest.raises(DataError, match="top1: '_label' holds 6 labels for 8 rows of samples"):
        check_labels("top1", open_samples(tmp_path / "d.npz", inputs))
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 2), np.float32), _label=np.arange(8))
    check_labels("top1", open_samples(tmp_path / "d.npz", inputs))


@pytest.mark.parametrize("function", ["text", "missing"])
def test_a_metric_that_fails_is_tried_on_the_float_model_before_the_search(here: Path, function: str) -> None:
    (here / "m.onnx").write_bytes(encoded())
    steps: list[str] = []

    class Steps(Silent):
        def step(self, name: str) -> None:
            steps.append(name)

    with pytest.raises(DataError, match=f"own_metric:{function}"):
        quantize(
            here / "m.onnx",
            "static-int8",
            data=[save(here / "d.npz")],
            budget=Budget(metric=f"own_metric:{function}"),
            observer=Steps(),
        )
    assert "examine" in steps
    assert not {"rescale", "calibrate", "round", "verify", "metric"} & set(steps)


def test_a_file_of_python_is_named_by_its_module(here: Path) -> None:
    (here / "mine.py").write_text("def f(outputs, labels): return 1.0")
    with pytest.raises(DataError, match=r"'mine\.py:f' names a file") as caught:
        load_metric("mine.py:f")
    assert caught.value.hint == "Write mine:f."
