"""Data that onnxq does not read: the error says what they are, and how to save arrays of the model's own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from onnxq.data.advice import saving
from onnxq.data.samples import open_samples, wrap_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

ONE = [InputSpec("data_0", TensorProto.FLOAT, ("n", 3, 8, 8))]
THREE = [InputSpec(name, TensorProto.INT64, ("n", "t")) for name in ("input_ids", "attention_mask", "token_type_ids")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mydata.py").write_text("raise SystemExit\n\ndef photos():\n    ...\n\ndef _own(): ...\n\ndef yolox(): ...\n")
    Path("empty.py").write_text("x = 1\n")
    Path("wrong.py").write_text("def (:\n")
    Path("code").mkdir()
    Path("code/more.py").write_text("def photos(): ...\n")
    for name in ("cat.JPEG", "talk.wav", "s.txt", "m.onnx", "input_0.pb", "table.parquet"):
        Path(name).write_text("\n")
    Path("blank.npz").touch()
    np.save("x.npy", np.zeros((2, 4)))
    Path("photos").mkdir()
    Path("my photos").mkdir()
    Path("notes").mkdir()
    Path("talks").mkdir()
    Path("talks/a.wav").touch()
    for file in ("clips/a.mov", "clips/b.mp4", "tables/a.mat", "tables/b.mat"):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).touch()
    for name in ("a.md", "b.md", "notes.rst"):
        (Path("notes") / name).touch()
    Path("nothing").mkdir()
    Path("unseen").mkdir()
    Path("unseen/.a.jpg").write_bytes(b"")
    Path("nested/inside").mkdir(parents=True)


def refused(source: str, inputs: Sequence[InputSpec] = ONE) -> tuple[str, str]:
    with pytest.raises(DataError) as caught:
        open_samples(source, inputs)
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("mydata.py:photos", "mydata.py:photos names a file, not a module", "Write mydata:photos."),
        ("code/more.py:photos", "names a file, not a module", "Write code.more:photos."),
        ("./mydata.py:photos", "names a file, not a module", "Write mydata:photos."),
        ("/tmp/../etc/none.py:f", "/tmp/../etc/none.py does not exist", ""),
        ("gone.py:photos", "gone.py does not exist", "Write gone:photos for a function of a module."),
        ("mydata.py", "mydata.py is Python code", "Write mydata:photos or mydata:yolox."),
        ("code/more.py", "is Python code", "Write code.more:photos."),
        ("empty.py", "empty.py is Python code without a function", "Write one, and give empty:FUNCTION."),
        ("wrong.py", "wrong.py is Python code with a mistake", "Correct it"),
        ("talk.wav", "talk.wav is a sound", "data_0=array), where data_0 is float32[n, 3, 8, 8]."),
        ("s.txt", "s.txt names no pictures", "Write the path of a picture in each line."),
        ("m.onnx", "m.onnx is a model, not data", "data_0=array"),
        ("input_0.pb", "input_0.pb is a single tensor", "Give the folder that it is in"),
        ("blank.npz", "blank.npz is empty", ""),
        ("table.parquet", "table.parquet is a Parquet table, which onnxq does not read", "data_0=array"),
        ("notes", "the folder notes has no samples in .npz or .npy: it holds 2 .md and 1 .rst files", "data_0=array"),
        (
            "talks",
            "it holds 1 .wav file",
            "No input takes a waveform, so compute what it takes. Save samples: numpy.savez",
        ),
        ("clips", "it holds 1 .mov and 1 .mp4 files", "Save its frames as pictures: `ffmpeg -i FILE"),
        ("tables", "it holds 2 .mat files", "Read each with scipy.io.loadmat(FILE)['NAME'], and save samples: numpy"),
        ("nothing", "has no samples in .npz or .npy: it is empty", "data_0=array"),
        ("unseen", "has no samples in .npz or .npy: it holds hidden files alone", "data_0=array"),
        ("nested", "has no samples in .npz or .npy: it holds 1 folder", "test_data_set_*"),
        ("photo", "photo does not exist", "Did you mean 'photos'?"),
        ("mydata", "mydata does not exist", "Write mydata:FUNCTION for a function of mydata.py."),
        ("mydata:", "mydata: does not exist", "Write mydata:FUNCTION"),
        ("mydata.photos", "mydata.photos does not exist", "Write mydata:photos for a function of mydata.py."),
        ("x.npy,s.txt", "x.npy,s.txt does not exist", "for every file: -d x.npy -d s.txt."),
        ("x.npy,my photos", "my photos does not exist", "for every file: -d x.npy -d 'my photos'."),
        ("a" * 254, "a does not exist", "Give an .npz file"),
        ("*.npz", "data are named without patterns, and *.npz matches 1 file", "Give the folder ., or name each"),
        ("*.jpeg", "no file matches *.jpeg", "Give the folder that the files are in"),
        ("~/d.npz", "~/d.npz does not exist", "write $HOME"),
        ("$DATA/d.npz", "$DATA/d.npz does not exist", "write double ones, or none"),
        ("/", "/ is the whole disk", "Give the folder that the samples are in."),
        ("nowhere/d.npz", "nowhere/d.npz does not exist", "Give an .npz file, a folder"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_do(source: str, message: str, hint: str) -> None:
    said = refused(source)
    assert message in said[0]
    assert hint in said[1]


def test_one_array_for_a_model_of_several_inputs() -> None:
    message, hint = refused("x.npy", THREE)
    assert message == "x.npy holds one array, and the model has 3 inputs"
    assert "numpy.savez('data.npz', input_ids=array, attention_mask=array, token_type_ids=array)" in hint


def test_one_array_in_python_is_to_be_a_dictionary() -> None:
    with pytest.raises(DataError) as caught:
        wrap_samples(np.zeros((4, 5), np.int64), THREE)
    assert caught.value.hint.startswith('Give all: {"input_ids": array, "attention_mask": array, ')


def test_names_that_are_no_words_of_python_go_in_by_a_dictionary() -> None:
    inputs = [InputSpec("serving_default:0", TensorProto.UINT8, None)]
    made = "numpy.savez('data.npz', **{'serving_default:0': array}), where serving_default:0 is uint8"
    assert saving(inputs) == made


@pytest.mark.parametrize(
    ("left_out", "made"),
    [
        ("attention_mask", "'attention_mask' is numpy.ones_like(input_ids) for texts of one length and one part."),
        ("token_type_ids", "'token_type_ids' is numpy.zeros_like(input_ids) for texts of one length and one part."),
        ("input_ids", "pass --state OUTPUT=INPUT."),
    ],
)
def test_an_array_that_is_missing_may_be_made_of_another(left_out: str, made: str) -> None:
    np.savez("two.npz", **{one.name: np.zeros((4, 7), np.int64) for one in THREE if one.name != left_out})
    message, hint = refused("two.npz", THREE)
    assert f"has no array for input '{left_out}'" in message
    assert hint.endswith(made)


def test_the_line_of_python_runs() -> None:
    line = saving(THREE).partition(", where")[0].replace("array", "numpy.zeros((4, 7), 'int64')")
    exec(line, {"numpy": np})
    assert open_samples("data.npz", THREE).count == 4


def test_samples_in_python_are_named_as_there() -> None:
    given = [{"data_0": np.zeros((1, 3, 8, 8))}, {"data_0": np.zeros((1, 3, 9, 9))}]
    with pytest.raises(DataError, match=r"samples\[1\] gives 9 \[1, 3, 9, 9\]"):
        list(wrap_samples(given, ONE))


def test_a_sample_without_its_batch_axis_is_told_so() -> None:
    with pytest.raises(DataError, match=r"samples\[0\] gives rank 3") as caught:
        list(wrap_samples([{"data_0": np.zeros((3, 8, 8))}], ONE))
    assert caught.value.hint == "An axis of size 1 is missing: numpy.expand_dims(array, 0)."


def test_types_have_the_names_of_numpy() -> None:
    assert str(ONE[0]) == "float32[n, 3, 8, 8]"
    assert str(THREE[0]) == "int64[n, t]"


def test_an_array_without_a_name_is_told_how_to_get_one() -> None:
    np.savez("arr.npz", np.zeros((1, 3, 8, 8)))
    message, hint = refused("arr.npz")
    assert message == "arr.npz has 'arr_0', which is no input of the model"
    assert hint.startswith("It was saved without a name: write numpy.savez(file, data_0=array).")
    assert "The model's inputs are 'data_0'" in hint


def test_statistics_are_no_samples() -> None:
    np.savez("st.npz", format="onnxq statistics 3", fingerprint="0", names=["a"], samples=3)
    with pytest.raises(DataError, match=r"st.npz holds statistics of a calibration") as caught:
        open_samples(["st.npz"], ONE)
    assert "--stats" in caught.value.hint
