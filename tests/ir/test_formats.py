"""Files of other formats given for a model: they are named, with the way to ONNX."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq.errors import ModelError
from onnxq.ir import load, parse
from onnxq.ir.wire import bytes_field, integer_field
from tests.helpers import build, floats, node

SAMPLES = Path(__file__).parents[2] / "sample_models"
DIGITS = (SAMPLES / "digits_cnn.onnx").read_bytes()


def archive(*names: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name in names:
            file.writestr(name, b"\x80\x02}.")
    return written.getvalue()


def tar() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as file:
        file.addfile(tarfile.TarInfo("model.onnx"))
    return written.getvalue()


def npz() -> bytes:
    written = io.BytesIO()
    np.savez(written, x=np.zeros(3))
    return written.getvalue()


def npy() -> bytes:
    written = io.BytesIO()
    np.save(written, np.zeros(3))
    return written.getvalue()


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A message of protobuf."""
    return b"".join(integer_field(n, v) if isinstance(v, int) else bytes_field(n, v) for n, v in fields)


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0\0\0\0"


NODE_DEF = message((1, b"input"), (2, b"Placeholder"))
META_GRAPH = message((1, message((5, b"2.15"))), (2, message((1, NODE_DEF))))
TENSOR = onnx.numpy_helper.from_array(np.zeros(3, np.float32)).SerializeToString()
# name → (bytes, what they are, a part of the way to ONNX)
CASES: dict[str, tuple[bytes, str, str]] = {
    "m.textproto": (
        b"ir_version: 8\ngraph {\n}\n",
        "an ONNX model in protobuf's text form",
        "format='textproto'",
    ),
    "m.onnxtxt": (
        b'<ir_version: 8, opset_import: ["": 17]>\ng () => () {}',
        "an ONNX model in ONNX's text form",
        "format='onnxtxt'",
    ),
    "m.json": (b'{"irVersion": "8", "graph": {}}', "an ONNX model in JSON", "format='json'"),
    "bom.onnx": (b"\xef\xbb\xbf" + DIGITS, "an ONNX model behind a byte order mark", "tail -c +4"),
    "s.wav": (b"RIFF\0\0\0\0WAVEfmt " + bytes(99), "a recording", "go with --data"),
    "s.flac": (b"fLaC" + bytes(99), "a recording", "go with --data"),
    "torch.pt": (archive("m/data.pkl", "m/version"), "a PyTorch checkpoint", "torch.onnx.export"),
    "script.pt": (archive("m/data.pkl", "m/constants.pkl"), "a TorchScript model", "torch.jit.load"),
    "program.pt2": (archive("m/archive_format", "m/models/model.json"), "an exported PyTorch", "torch.export.load"),
    "old.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.rest", "a PyTorch checkpoint", "torch.onnx.export"),
    "some.pkl": (pickle.dumps({"w": 1}), "a Python pickle, perhaps a PyTorch checkpoint", "torch.onnx.export"),
    "m.tflite": (b"\x20\0\0\0TFL3" + bytes(99), "a TensorFlow Lite model", "--tflite {path} --output model.onnx"),
    "m.ort": (b"\x20\0\0\0ORTM" + bytes(99), "a model in ORT format", ".onnx file that it was made of"),
    "saved_model.pb": (message((1, 1), (2, META_GRAPH)), "a TensorFlow SavedModel", "tf2onnx.convert --saved-model"),
    "frozen.pb": (message((1, NODE_DEF), (1, NODE_DEF), (4, b"")), "a frozen TensorFlow graph", "--graphdef {path}"),
    "m.h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file, perhaps a Keras model", "--keras {path}"),
    "m.keras": (archive("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "--keras {path}"),
    "m.mlmodel": (message((1, 4), (2, message((1, b""))), (500, b"\x0a\x00")), "a Core ML model", "Export the model"),
    "m.mlpackage.zip": (archive("m/Manifest.json", "m/Data/x"), "a Core ML model", "Export the model"),
    "m.safetensors": (safetensors(), "weights without a graph, in safetensors", "optimum-cli export onnx"),
    "m.gguf": (b"GGUF\3\0\0\0" + bytes(99), "a GGUF file", "optimum-cli export onnx"),
    "m.caffemodel": (message((1, b"net"), (100, b"\x0a\x00")), "a Caffe model", "ONNX"),
    "m.pdmodel": (message((1, message((1, 0), (2, 2**64 - 1)))), "a PaddlePaddle model", "paddle2onnx"),
    "m.onnx.gz": (gzip.compress(DIGITS), "packed by gzip", "gunzip {path}"),
    "m.onnx.xz": (lzma.compress(DIGITS), "packed by xz", "unxz {path}"),
    "m.zip": (archive("a/m.onnx"), "a zip archive that holds a/m.onnx", "Unpack it"),
    "m.tar": (tar(), "a tar archive", "Unpack it"),
    "d.npz": (npz(), "calibration data of NumPy", "with --data"),
    "d.npy": (npy(), "calibration data of NumPy", "with --data"),
    "input_0.pb": (TENSOR, "an ONNX tensor, not a model", "with --data"),
    "cat.jpg": (b"\xff\xd8\xff\xe0" + bytes(99), "a picture", "Give the model first"),
    "cat.png": (b"\x89PNG\r\n\x1a\n" + bytes(99), "a picture", "Give the model first"),
    "page.onnx": (b"<!DOCTYPE html>\n<html><title>Sign in</title>", "a web page", "Fetch the file itself"),
    "m.xml": (b'<?xml version="1.0"?>\n<net name="m" version="11">', "a model of OpenVINO", "Export"),
    "README.md": ("# Ein Modell für alle\n".encode(), "a text file", "Give an ONNX model"),
    "long.md": ("ä".encode() * 5000, "a text file", "Give an ONNX model"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_format_is_named_and_so_is_the_way_to_onnx(tmp_path: Path, name: str) -> None:
    content, what, way = CASES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert caught.value.message.startswith(f"{path} is not a readable ONNX model: it is {what}")
    assert way.format(path=path) in caught.value.hint
    assert "FILE" not in caught.value.hint


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_named_alike(name: str) -> None:
    content, what, _ = CASES[name]
    with pytest.raises(ModelError, match="it is " + what.replace("(", r"\(")):
        parse(content)


@pytest.mark.parametrize(
    "content",
    [DIGITS[: len(DIGITS) // 2], DIGITS[:100], DIGITS[:20], bytes(100), b"\xff" * 100, DIGITS[1:], b"\x08\x08"],
)
def test_a_damaged_model_is_no_other_format(content: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        parse(content)
    assert "it is " not in caught.value.message
    assert "truncated, damaged, or something else" in caught.value.hint


def test_a_model_that_was_converted_as_text_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(build([node("MatMul", "x w", "y")], {"x": ["n", 64]}, weights={"w": floats(64, 64)}), path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(ModelError, match="each line feed in it follows a carriage return") as caught:
        load(path)
    assert "`*.onnx binary` in .gitattributes" in caught.value.hint


def test_a_damaged_archive_is_one_still() -> None:
    with pytest.raises(ModelError, match="it is a zip archive that is damaged"):
        parse(archive("m/data.pkl")[:40])


def make_saved_model(folder: Path) -> None:
    (folder / "saved_model.pb").write_bytes(b"")


def make_package(folder: Path) -> None:
    (folder / "Manifest.json").write_text("{}")
    (folder / "Data").mkdir()


@pytest.mark.parametrize(
    ("make", "what", "way"),
    [
        (make_saved_model, "it is a TensorFlow SavedModel", "--saved-model"),
        (make_package, "it is a Core ML model", "Export the model"),
        (lambda folder: None, "is a folder", "Give the .onnx file inside it."),
    ],
)
def test_folders_are_named_alike(tmp_path: Path, make: Callable[[Path], None], what: str, way: str) -> None:
    make(tmp_path)
    with pytest.raises(ModelError, match=what) as caught:
        load(tmp_path)
    assert way in caught.value.hint


def test_a_name_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    for name in ("classifier.onnx", "rnet.onnx", "second.int8.onnx", "notes.md"):
        (tmp_path / name).touch()
    for given, hint in {
        "clasifier.onnx": "Did you mean 'classifier.onnx'?",
        "Classifier.ONNX": "Did you mean 'classifier.onnx'?",
        "classifier": "Did you mean 'classifier.onnx'?",
        "second.onnx": "Check the path of the model.",  # what was made of it is something else
        "nope.onnx": "Check the path of the model.",  # the endings alone are alike
        "detector.onnx": "Check the path of the model.",
        "nowhere/classifier.onnx": "Check the path of the model.",
    }.items():
        with pytest.raises(ModelError) as caught:
            load(tmp_path / given)
        assert caught.value.hint == hint, given
