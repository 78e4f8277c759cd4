from pathlib import Path

import pytest

from onnxq.project.find_data import find, fit, role


def tree(root: Path, *files: str) -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(root: Path, paths: tuple[Path, ...]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


def test_models_and_data_below_a_folder(tmp_path: Path) -> None:
    tree(
        tmp_path,
        *("models/a.onnx", "models/a.int8.onnx", "models/a_calib.npz", "data/calibration.npz", "notes.txt"),
        *("photos/1.jpg", "photos/2.PNG", "wavs/x.wav", "steps/0.npy", "steps/1.npy", "lines.jsonl", "lone/0.npy"),
        *(".git/b.onnx", "node_modules/c.onnx", ".venv/d.onnx", "env/pyvenv.cfg", "env/e.onnx"),
    )
    found = find(tmp_path)
    assert names(tmp_path, found.models) == ["models/a.onnx"]
    assert names(tmp_path, found.data) == [
        *("data/calibration.npz", "lines.jsonl", "lone/0.npy", "models/a_calib.npz"),
        *("photos", "steps", "steps/0.npy", "steps/1.npy", "wavs"),
    ]


def test_folders_of_classes_are_one_and_parts_for_different_ends_are_not(tmp_path: Path) -> None:
    tree(tmp_path, "pets/cat/1.jpg", "pets/dog/1.jpg", "birds/train/1.jpg", "birds/val/1.jpg")
    tree(tmp_path, "onnx/test_data_set_0/input_0.pb", "onnx/test_data_set_1/input_0.pb")
    assert names(tmp_path, find(tmp_path).data) == ["birds/train", "birds/val", "onnx", "pets"]


def test_a_folder_of_arrays_for_different_ends_is_no_data(tmp_path: Path) -> None:
    tree(tmp_path, "data/calib.npz", "data/test.npz")
    assert names(tmp_path, find(tmp_path).data) == ["data/calib.npz", "data/test.npz"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cnn_calib.npz", "calibrate"),
        ("data/calibration/x.npz", "calibrate"),
        ("cnn-eval.npz", "verify"),
        ("val/x.npz", "verify"),
        ("valve.npz", ""),
        ("data/test/calib.npz", "calibrate"),
    ],
)
def test_names_say_what_data_are_for(path: str, expected: str) -> None:
    assert role(Path("root", path), Path("root")) == expected


@pytest.mark.parametrize(
    ("path", "strangeness"),
    [
        ("cnn_small_calib.npz", 0),
        ("cnn_small.npz", 0),
        ("cnn_small/images/0.npz", 0),
        ("data/cnn_calibration.npz", 1),
        ("data/small_calib.npz", 1),
        ("calibration.npz", 2),
        ("data/images_01.npz", 2),
        ("data/other_calib.npz", 3),
    ],
)
def test_data_belong_to_a_model_by_their_name(path: str, strangeness: int) -> None:
    assert fit(Path("m/cnn_small.onnx"), Path(path), Path()).strangeness == strangeness


def test_the_nearest_of_equal_names_comes_first() -> None:
    model = Path("models/a.onnx")
    near, far = (fit(model, Path(path), Path()) for path in ("models/calib.npz", "data/calib.npz"))
    assert near < far
    assert fit(model, Path("models/a_calib.npz"), Path()) < fit(model, Path("models/a.npz"), Path()) < near


def test_arrays_come_before_what_is_made_to_fit_unless_it_has_the_model_s_name(tmp_path: Path) -> None:
    tree(tmp_path, "cnn.onnx", "photos/1.jpg", "cnn_photos/1.jpg", "imagenet_calib.npz", "calib.npz", "lines.jsonl")
    order = ["cnn_photos", "calib.npz", "imagenet_calib.npz", "photos", "lines.jsonl"]
    fits = {name: fit(tmp_path / "cnn.onnx", tmp_path / name, tmp_path) for name in reversed(order)}
    assert sorted(fits, key=fits.__getitem__)[:4] == order[:4]
