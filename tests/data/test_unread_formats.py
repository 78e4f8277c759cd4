"""Data in formats of other programs: each is named, with the way to arrays, pictures or sentences."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from onnxq.data.reading import PLAIN, ModelFacts, Reading
from onnxq.data.samples import open_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

PICTURES = [InputSpec("x", TensorProto.FLOAT, ("n", 3, 8, 8))]
TABLE = [InputSpec("x", TensorProto.FLOAT, ("n", 3))]
TEXT = [InputSpec(name, TensorProto.INT64, ("n", "t")) for name in ("input_ids", "attention_mask")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(source: str, inputs: list[InputSpec], reading: Reading = PLAIN) -> str:
    with pytest.raises(DataError) as caught:
        open_samples(source, inputs, reading, ModelFacts(Path("m.onnx")))
    return f"{caught.value.message} | {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "content", "named", "way"),
    [
        ("a.zip", b"PK\3\4", "an archive", "Unpack it"),
        ("a.stats", b"PK\3\4", "a file of statistics", "wrote with --stats"),
        ("a.tar.gz", b"\x1f\x8b", "an archive", "Unpack it"),
        ("a.data", b"\x1f\x8b\0", "a gzip archive", "Unpack it"),
        ("a.bin", b"PK\3\4", "a ZIP archive", "Unpack it"),
        ("a.data", bytes(257) + b"ustar\0", "a tar archive", "Unpack it"),
        ("a.parquet", b"PAR1", "a Parquet table", "pandas.read_parquet('a.parquet')"),
        ("a.out", b"PAR1", "a Parquet table", "pandas.read_parquet('a.out')"),
        ("a.json", b'{"images": [], "annotations": []}', "a list of pictures as COCO has it", "Give the folder"),
        ("a.nc", b"CDF", "a NetCDF file", "xarray.open_dataset('a.nc')"),
        ("a.arrows", b"\xff\xff", "an Arrow stream", "pyarrow.ipc.open_stream('a.arrows')"),
        ("a.h5", b"\x89HDF\r\n", "an HDF5 file", "h5py.File('a.h5')"),
        ("a.mat", b"MATLAB", "a MATLAB file", "scipy.io.loadmat('a.mat')"),
        ("a.pt", b"PK\3\4", "a file of PyTorch", "torch.load('a.pt')"),
        ("a.pkl", b"\x80\x04", "a pickled object of Python", "pickle.load(open('a.pkl', 'rb'))"),
        ("a.safetensors", b"\0", "a safetensors file", "load_file('a.safetensors')"),
        ("a.tfrecord", b"\0", "a TFRecord file", "TFRecordDataset('a.tfrecord')"),
        ("a.bin", b"\0\1", "a file of bytes without a shape", "('a.bin', 'float32').reshape(-1, 3, 8, 8)"),
        ("a.json", b"[1]", "a JSON file", "numpy.array(json.load(open('a.json')))"),
        ("a.json", b'{"n": 3, "x": [[1]]}', "a JSON file", "numpy.array(json.load(open('a.json'))['x'])"),
        ("a.csv", b"\xef\xbb\xbf1,2,3\r\n", "a table in text", "delimiter=',', encoding='utf-8-sig')"),
        ("a.csv", "a,b,c\n1,2,3\n".encode("utf-16"), "a table in text", "skiprows=1, encoding='utf-16')"),
        ("a.csv", "gr\xf6\xdfe,b,c\n1,2,3\n".encode("latin-1"), "a table in text", "skiprows=1, encoding='latin-1')"),
        ("a.csv", "gr\xf6\xdfe,b,c\n1,2,3\n".encode(), "a table in text", "skiprows=1)"),
        ("a.jsonl", b"[[1, 2], [3, 4]]", "a list of JSON", "numpy.array([one for one in json.load(open('a.jsonl'))])"),
        ("a.jsonl", b'[\n{"x": [1]}]', "a list of JSON", "numpy.array([one['x'] for one in json.load("),
        ("a.wav", b"<!DOCTYPE html>", "a web page", "Download the file itself"),
        ("a.mp4", b"\0", "a video", "ffmpeg"),
        ("a.tif", b"II*\0", "a picture of another kind", "Convert it to .jpg or .png."),
        ("a.mp3", b"ID3", "a recording of another kind", "Convert it to .wav or .flac."),
        ("a.img", b"\x89PNG", "a PNG picture with another ending", "Name it .png."),
        ("a.db", b"SQLite format 3\0", "an SQLite database", "sqlite3"),
        ("a.csv", b"file,class\na.jpg,3\n", "a table that names files", "Write a path in each line of a .txt file"),
        ("a.csv", b'"' + b"1" * 200_000, "a table in text", "numpy.loadtxt('a.csv', 'float32', delimiter=',')"),
    ],
)
def test_each_format_is_named(name: str, content: bytes, named: str, way: str) -> None:
    Path(name).write_bytes(content)
    said = refused(name, PICTURES)
    assert f"{name} is {named}, which onnxq does not read" in said
    assert way in said


@pytest.mark.parametrize("text", ["a,b,c,price\n1,2,3,4\n5,6,7,8\n", "1;2;3\n4;5;6\n", "1\t2\t3\n4\t5\t6\n"])
def test_the_line_that_reads_a_table_works(text: str) -> None:
    name = "t.tsv" if "\t" in text else "t.csv"
    Path(name).write_text(text)
    code = refused(name, TABLE).partition("Read it with ")[2].partition(", and save samples")[0]
    made = eval(code, {"numpy": np})  # what a reader would paste
    assert made.dtype == np.float32
    assert made[-1].tolist() == [
        float(part) for part in text.strip().splitlines()[-1].replace(";", ",").replace("\t", ",").split(",")[:3]
    ]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (",a,b,c\n0,1,2,3\n1,4,5,6\n", [4, 5, 6]),  # the index that pandas writes
        ("a;b;c\n1,5;2;3\n4,5;5;6,25\n", [4.5, 5, 6.25]),
        ("1,5;2;3\n4,5;5;6,25\n", [4.5, 5, 6.25]),
        ("name,a,b,c\nx,1,2,3\ny,4,5,6\n", [4, 5, 6]),
        ("a,name,b,c\n1,x,2,3\n4,y,5,6\n", [4, 5, 6]),
    ],
)
def test_the_line_takes_the_columns_of_numbers(text: str, last: list[float]) -> None:
    Path("t.csv").write_text(text)
    code = refused("t.csv", TABLE).partition("Read it with ")[2].partition(", and save samples")[0]
    assert eval(code, {"numpy": np})[-1].tolist() == last


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the line leaves the file to Python
@pytest.mark.parametrize("line", ['{"id": 7, "x": [1, 2, 3]}', '{"row": [1, 2, 3]}', "[1, 2, 3]"])
def test_arrays_in_lines_of_json(line: str) -> None:
    Path("t.jsonl").write_text(f"{line}\n{line}\n")
    said = refused("t.jsonl", TABLE)
    assert "t.jsonl is lines of JSON, which onnxq does not read" in said
    code = said.partition("Read it with ")[2].partition(", and save samples")[0]
    assert eval(code, {"numpy": np, "json": json}).tolist() == [[1, 2, 3]] * 2


def test_a_table_of_pandas_becomes_lines_of_json_for_sentences() -> None:
    Path("a.parquet").write_bytes(b"PAR1")
    made = "pandas.read_parquet('a.parquet').to_json('a.jsonl', orient='records', lines=True), and give a.jsonl."
    assert made in refused("a.parquet", TEXT)


def test_json_for_sentences_and_a_table_of_a_spreadsheet() -> None:
    Path("s.json").write_text(json.dumps(["one", "two"]))
    assert "Write a sentence in each line of a .txt file" in refused("s.json", TEXT)
    Path("s.csv").write_text("id;text\n1;first, of two\n2;second\n")
    assert "holds sentences, and no tokenizer.json" in refused("s.csv", TEXT)  # it is read


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cut.npz", "begins like a ZIP file, and its end is missing"),
        ("page.npz", "like a web page"),
        ("t.npy", "like text"),
        ("pickled.npy", "like a pickled object of Python"),
    ],
)
def test_arrays_that_are_something_else(name: str, said: str) -> None:
    with zipfile.ZipFile("whole.zip", "w") as archive:
        archive.writestr("x.npy", bytes(999))
    content = {"cut.npz": Path("whole.zip").read_bytes()[:500], "page.npz": b"<!DOCTYPE html>", "t.npy": b"hello"}
    content["pickled.npy"] = pickle.dumps([1.0])
    Path(name).write_bytes(content[name])
    assert f"{name} cannot be read: it begins" in refused(name, PICTURES)
    assert said in refused(name, PICTURES)


@pytest.mark.parametrize("size", [6, 9, 60, 1000])
def test_an_array_whose_end_is_missing(size: int) -> None:
    np.save("x.npy", np.zeros((4, 3, 8, 8), np.float32))
    Path("x.npy").write_bytes(Path("x.npy").read_bytes()[:size])
    with pytest.raises(DataError, match=r"x\.npy cannot be read: its end is missing"):
        list(open_samples("x.npy", PICTURES))


def test_what_complex_numbers_and_files_without_arrays_need() -> None:
    np.savez("d.npz", x=np.zeros((4, 3, 8, 8), np.complex64))
    with pytest.raises(DataError) as caught:
        list(open_samples("d.npz", PICTURES))
    assert caught.value.hint == "Give real numbers: .real, .imag or numpy.abs, as the model wants."
    np.savez("d.npz")
    assert "Save one array for each of 'x': numpy.savez(file, x=array)." in refused("d.npz", PICTURES)


def test_labels_need_a_name_with_a_mark() -> None:
    np.savez("d.npz", x=np.zeros((4, 3, 8, 8), np.float32), labels=np.zeros(4))
    assert "If it holds labels, call it '_labels'." in refused("d.npz", PICTURES)
    np.savez("d.npz", y=np.zeros((4, 3, 8, 8), np.float32))
    assert "labels, call" not in refused("d.npz", PICTURES)


def test_pictures_without_an_ending_and_models_without_pictures() -> None:
    Path("bare").mkdir()
    for index in range(3):
        Path(f"bare/{index}").write_bytes(b"\x89PNG\r\n")
    assert "3 files without an ending begin like PNG pictures: name them .png." in refused("bare", PICTURES)
    Path("photos").mkdir()
    Path("photos/a.png").touch()
    assert "no input takes pictures: not 'input_ids'" in refused("photos", TEXT)


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("photos\\a.png", "Write / between the folders of a path"),
        ("photos/a.png cat", "The class behind a path is a whole number."),
        ("A sentence, not a path.", "The model takes pictures"),
        ("photos/b.png", "Paths are relative to the folder of the list."),
    ],
)
def test_a_line_that_names_no_picture(line: str, way: str) -> None:
    Path("photos").mkdir()
    Path("photos/a.png").touch()
    Path("list.txt").write_text(f"{line}\n")
    assert way in refused("list.txt", PICTURES)


def test_settings_that_say_nothing_about_the_data_are_named() -> None:
    np.savez("d.npz", x=np.zeros((4, 3, 8, 8), np.float32))
    reading = Reading(preprocess="size=8", tokenizer="t.json", text_key="a", max_length=3)
    opened = open_samples("d.npz", PICTURES, reading)
    assert [said.partition(" ")[0] for said in opened.ignored] == [
        "'preprocess'",
        "'tokenizer'",
        "'text-key'",
        "'max-length'",
    ]
    assert open_samples("d.npz", PICTURES).ignored == ()


def test_settings_of_pictures_for_sentences() -> None:
    Path("s.txt").write_text("one\n")
    said = refused("s.txt", TEXT, Reading(preprocess="mean=0.5"))
    assert "unknown key 'mean' | It is about pictures, and these data are none." in said
    Path("photos").mkdir()
    Path("photos/a.png").touch()
    said = refused("photos", PICTURES, Reading(preprocess="mean=0.5 std=0.5"))
    assert "Put commas between settings: mean=0.5,std=0.5." in said


def test_another_file_than_a_tokenizer() -> None:
    Path("s.txt").write_text("one\n")
    Path("other.onnx").write_bytes(b"\x08\xff\xfe")
    said = refused("s.txt", TEXT, Reading(tokenizer="other.onnx"))
    assert "Give a tokenizer.json of Hugging Face" in said


def test_arrays_of_numpy_by_another_name_and_a_damaged_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(4000, dtype=np.float32))
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole)
    np.save(tmp_path / "d.npy", np.zeros(4, np.float32))
    (tmp_path / "b.npz").write_bytes((tmp_path / "d.npy").read_bytes())
    (tmp_path / "c.npz").write_bytes(whole[:3000] + bytes([whole[3000] ^ 255]) + whole[3001:])
    (tmp_path / "e.npz").write_bytes(whole[:3000])
    x = InputSpec("x", 1, ("n",))
    for name, said in {
        "a.npy": "is a .npz file by what is in it",
        "b.npz": "is a .npy file by what is in it",
        "c.npz": "it is damaged: the bytes of its array 'x' are not those that were written",
        "e.npz": "its end is missing",
    }.items():
        with pytest.raises(DataError, match=re.escape(said)):
            list(open_samples(tmp_path / name, [x]))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npz", b"nonsense", "a.npz cannot be read: an array in it does not begin like one"),
        ("p.npz", b"\n<html><body>", "p.npz cannot be read: it begins like a web page | Download the file itself"),
        ("g.npz", b"\x1f\x8b\x08", "it begins like a gzip archive | Unpack it: mv g.npz g.npz.gz && gunzip g.npz.gz."),
        ("v.npy", b"\x93NUMPY\x03\x00" + bytes(99), "its .npy format version is 3.0"),
    ],
)
def test_a_damaged_array_is_named_in_plain_words(name: str, content: bytes, said: str) -> None:
    with zipfile.ZipFile("a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    if name != "a.npz":
        Path(name).write_bytes(content)
    assert said in refused(name, PICTURES)


def test_data_for_a_model_without_inputs() -> None:
    np.savez("d.npz", x=np.zeros((2, 2), np.float32))
    with pytest.raises(DataError) as caught:
        list(open_samples("d.npz", []))
    assert (caught.value.message, caught.value.hint) == (
        "d.npz has 'x', and the model has no inputs",
        "Leave out the data.",
    )


def test_a_store_that_is_a_folder_is_named() -> None:
    Path("a.zarr").mkdir()
    Path("a.zarr/0.0").touch()
    said = refused("a.zarr", PICTURES)
    assert said.startswith("a.zarr is a Zarr store, which onnxq does not read | Read it with zarr.open('a.zarr')")


def test_a_sparse_matrix_is_named() -> None:
    np.savez("a.npz", indices=[0], indptr=[0, 1], format=b"csr", shape=[1, 3], data=[1.0])
    assert "It holds a sparse matrix: save scipy.sparse.load_npz(file).toarray()." in refused("a.npz", TABLE)


def test_labels_beside_the_samples_are_told_how_to_get_in() -> None:
    np.save("y_test.npy", np.zeros(4, np.int64))
    assert "save both: numpy.savez('data.npz', **{'x': array, '_label': labels})." in refused("y_test.npy", TABLE)
