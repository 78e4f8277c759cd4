"""Recognise files of other formats by their first bytes or content, and name the way from each to ONNX.

Sources of signatures: the specifications of the formats, and `file(1)`'s database.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

from onnxq.errors import ModelError
from onnxq.ir.wire import LENGTH_DELIMITED, VARINT, WireError, fields

MOST_LOOKED_AT, FEWEST_ENDS = 1 << 20, 8  # bytes, and line feeds of a file that was converted as text


class FileFormat(NamedTuple):
    """The format of a file, and the way to ONNX: `it is …`, and a sentence."""

    what: str
    hint: str


TORCH = "Export it from Python: torch.onnx.export(model, inputs, 'model.onnx')."
TF2ONNX = "Convert it: python -m tf2onnx.convert --{} {} --output model.onnx."
UNPACK = "Unpack it, and give the .onnx file."
DATA = FileFormat("calibration data of NumPy", "Give the model first, and these with --data.")
CORE_ML = FileFormat(
    "a Core ML model", "Export the model that it was made of to ONNX: Core ML cannot be converted back."
)
PICTURE = FileFormat("a picture", "Give the model first; pictures for calibration go into an .npz file as arrays.")
SOUND = FileFormat("a recording", "Give the model first; recordings for calibration go with --data.")
CUT_MARK = "A text editor put three bytes in front: copy the file again, or cut them off with tail -c +4."
KERAS = TF2ONNX.format("keras", "FILE")
TENSORRT = FileFormat("an engine of TensorRT", "Give the .onnx file that it was built of.")
# (position, bytes there, format)
SIGNATURES: tuple[tuple[int, bytes, FileFormat], ...] = (
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", FileFormat("a PyTorch checkpoint", TORCH)),
    (4, b"PTMF", FileFormat("a TorchScript model for mobile", TORCH)),
    (4, b"TFL3", FileFormat("a TensorFlow Lite model", TF2ONNX.format("tflite", "FILE"))),
    (4, b"ORTM", FileFormat("a model in ORT format", "Give the .onnx file that it was made of.")),
    (0, b"\x89HDF\r\n\x1a\n", FileFormat("an HDF5 file, perhaps a Keras model", KERAS)),
    (0, b"%PDF", FileFormat("a PDF document", "Give an ONNX model.")),
    (0, b"GGUF", FileFormat("a GGUF file", "Export the original model: optimum-cli export onnx --model NAME FOLDER.")),
    (0, b"\x93NUMPY", DATA),
    (0, b"\x1f\x8b", FileFormat("packed by gzip", "Unpack it: gunzip FILE.")),
    (0, b"BZh", FileFormat("packed by bzip2", "Unpack it: bunzip2 FILE.")),
    (0, b"\xfd7zXZ\0", FileFormat("packed by xz", "Unpack it: unxz FILE.")),
    (0, b"\x28\xb5\x2f\xfd", FileFormat("packed by zstd", "Unpack it: unzstd FILE.")),
    (0, b"7z\xbc\xaf\x27\x1c", FileFormat("a 7-Zip archive", UNPACK)),
    (257, b"ustar", FileFormat("a tar archive", UNPACK)),
    (0, b"\xff\xd8\xff", PICTURE),
    (0, b"\x89PNG", PICTURE),
    (0, b"fLaC", SOUND),
    (8, b"WAVEfmt", SOUND),
    (0, b"\xef\xbb\xbf\x08", FileFormat("an ONNX model behind a byte order mark", CUT_MARK)),
    (0, b"ftrt", TENSORRT),
    (0, b"ptrt", TENSORRT),
    (0, b"7767517", FileFormat("an ncnn model", "Export the model that it was made of to ONNX.")),
)
PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLE = FileFormat("a Python pickle, perhaps a PyTorch checkpoint", TORCH)
SAFETENSORS = FileFormat(
    "weights without a graph, in safetensors", "Export the model: optimum-cli export onnx --model FOLDER OUTPUT_FOLDER."
)
SAVED_MODEL = FileFormat("a TensorFlow SavedModel", TF2ONNX.format("saved-model", "FOLDER"))
GRAPH_DEF = FileFormat("a frozen TensorFlow graph", TF2ONNX.format("graphdef", "FILE --inputs NAME:0 --outputs NAME:0"))
CAFFE = FileFormat("a Caffe model", "Convert it to ONNX, for example with MMdnn, or export the model again.")
PADDLE = FileFormat("a PaddlePaddle model", "Convert it: paddle2onnx --model_dir FOLDER --save_file model.onnx.")
BINARY = "Save it in binary: onnx.save(onnx.load('FILE', format='{}'), 'model.onnx')."
CORE_ML_TYPES = range(200, 4000)  # fields of Core ML's Model, one for each kind; ONNX has none above 25
CAFFE_LAYER = 100
TENSOR_DATA = {4, 5, 7, 9, 10, 11, 13}  # fields of TensorProto that hold numbers
TENSOR = FileFormat("an ONNX tensor, not a model", "Give the model first, and the folder of the tensors with --data.")
TEXT = 4096  # bytes that tell a text


def foreign_format(data: memoryview, path: Path | None = None) -> FileFormat | None:
    """Return what a file is that is no ONNX model; None where nothing tells it.

    Args:
        data: All of its bytes.
        path: Where they are, to look into an archive without reading all of it.

    """
    start = bytes(data[:512])
    for position, signature, found in SIGNATURES:
        if start[position : position + len(signature)] == signature:
            return found
    if start.startswith(b"PK\x03\x04"):
        return _archive(data, path)
    if start.startswith(PICKLES):
        return PICKLE
    size = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 0 < size <= len(data) - 8:
        return SAFETENSORS
    return _message(data) or _text(data)


def foreign_folder(folder: Path) -> FileFormat | None:
    """Return what a folder is that holds a model of another format; None where nothing tells it."""
    if (folder / "saved_model.pb").is_file():
        return FileFormat(SAVED_MODEL.what, TF2ONNX.format("saved-model", folder))
    package = (folder / "Manifest.json").is_file() and (folder / "Data").is_dir()
    if package or folder.suffix in (".mlpackage", ".mlmodelc"):
        return CORE_ML
    return None


def unreadable_model(data: bytes | memoryview, path: Path | None, label: str, reason: str) -> ModelError:
    """Make the error for bytes that are no ONNX model: name what they are, where something tells it."""
    found = foreign_format(memoryview(data), path)
    if found is not None:
        hint = found.hint.replace("FILE", label) if path else found.hint
        return ModelError(f"{label} is not a readable ONNX model: it is {found.what}", hint)
    if _has_text_ends(data):
        reason, hint = "each line feed in it follows a carriage return", "It was converted as if it were text: in git, "
        hint += "mark it with `*.onnx binary` in .gitattributes, and fetch it again."
        return ModelError(f"{label} is not a readable ONNX model: {reason}", hint)
    hint = "The file is truncated, damaged, or something else: fetch or export it again."
    return ModelError(f"{label} is not a readable ONNX model: {reason}", hint)


def _has_text_ends(data: bytes | memoryview) -> bool:
    """Whether all line feeds follow carriage returns: of a model's bytes, one in 256 does."""
    content = bytes(data[:MOST_LOOKED_AT])
    return content.count(b"\n") == content.count(b"\r\n") >= FEWEST_ENDS


def _archive(data: memoryview, path: Path | None) -> FileFormat:
    try:
        with zipfile.ZipFile(path if path is not None else io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return FileFormat("a zip archive that is damaged", "Fetch it again, and unpack it.")
    if any(name.endswith("/constants.pkl") for name in names):
        return FileFormat("a TorchScript model", "Load it with torch.jit.load, and export it with torch.onnx.export.")
    if any(name.endswith("data.pkl") for name in names):
        return FileFormat("a PyTorch checkpoint", TORCH)
    if any(name.endswith("archive_format") for name in names):
        return FileFormat("an exported PyTorch program", "Load it with torch.export.load, then call torch.onnx.export.")
    if "metadata.json" in names and "config.json" in names:
        return FileFormat("a Keras model", KERAS)
    if any(name.endswith("Manifest.json") for name in names):
        return CORE_ML
    if names and all(name.endswith(".npy") for name in names):
        return DATA
    models = [name for name in names if name.endswith(".onnx")]
    return FileFormat(f"a zip archive{f' that holds {models[0]}' if models else ''}", UNPACK)


def _message(data: memoryview) -> FileFormat | None:
    """Tell messages of protobuf apart by their fields: they have no signature."""
    try:
        found = {number: (kind, data[start:end]) for number, kind, _, start, end in reversed(fields(data))}
    except WireError:
        return None
    if any(number in CORE_ML_TYPES for number in found):
        return CORE_ML
    if CAFFE_LAYER in found:
        return CAFFE
    kind, first = found.get(1, (-1, data[:0]))
    inner = _kinds(first) if kind == LENGTH_DELIMITED else {}
    if inner.get(1) == LENGTH_DELIMITED and inner.get(2) == LENGTH_DELIMITED:  # a NodeDef: its name and operator
        return GRAPH_DEF
    if inner.get(1) == VARINT and inner.get(2) == VARINT:  # a BlockDesc: its number and that of its parent
        return PADDLE
    kind_of_second, second = found.get(2, (-1, data[:0]))
    if kind_of_second == VARINT and not TENSOR_DATA.isdisjoint(found):
        return TENSOR
    if kind == VARINT and kind_of_second == LENGTH_DELIMITED and 7 not in found:  # 7 is the graph of an ONNX model
        meta = _kinds(second)
        if meta.get(1) == LENGTH_DELIMITED and meta.get(2) == LENGTH_DELIMITED:  # a MetaGraphDef
            return SAVED_MODEL
    return None


def _kinds(data: memoryview) -> dict[int, int]:
    """Return the wire type of each field of a message; nothing where it is none."""
    try:
        return {number: kind for number, kind, _, _, _ in fields(data)}
    except WireError:
        return {}


def _text(data: memoryview) -> FileFormat | None:
    start = bytes(data[:TEXT])
    if len(data) > TEXT:
        start = start[: start.rfind(b"\n") + 1] or start[:-4]
    try:
        text = start.decode("utf-8").lstrip("\ufeff \r\n\t")
    except UnicodeDecodeError:
        return None
    if not text or any(ord(letter) < 32 and letter not in "\t\n\r\f" for letter in text):
        return None
    lower = text[:200].lower()
    if lower.startswith(("<!doctype html", "<html")):
        return FileFormat(
            "a web page", "Fetch the file itself: the address is that of a page about it, or asks for a login."
        )
    if "<net " in text[:400] and lower.startswith("<?xml"):
        return FileFormat("a model of OpenVINO", "Export the model that it was made of to ONNX.")
    if re.match(r"<\s*ir_version\s*:", text):
        return FileFormat("an ONNX model in ONNX's text form", BINARY.format("onnxtxt"))
    if re.match(r"(ir_version|producer_name|graph)\s*[:{]", text):
        return FileFormat("an ONNX model in protobuf's text form", BINARY.format("textproto"))
    if text[0] == "{" and '"irVersion"' in text:
        return FileFormat("an ONNX model in JSON", BINARY.format("json"))
    return FileFormat("a text file", "Give an ONNX model.")
