"""Formats of other programs: told by the suffix or by the first bytes, with the Python that makes an array of one.

Tests: `tests/data/test_unread_formats.py`.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from onnxq.data.beside import PICTURE_SUFFIXES, SOUND_SUFFIXES
from onnxq.data.validation import InputSpec
from onnxq.text import counted, shell_path

START = 512  # bytes of a file that are looked at
MOST_OF_LETTER = 4  # bytes, of which the last ones may be cut off
TAR_MARK = 257  # where a tar archive says that it is one
DELIMITERS = ";\t,"  # the first that occurs: a comma may belong to numbers, and a semicolon does not
ARRAY = ".to_numpy()"  # at the end of code that reads a table with pandas
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+(e[-+]?\d+)?\s*", re.I)
INDEX = ("", "index", "unnamed: 0", "id", "row", "row_id")  # names of a column that only numbers the rows


@dataclass(frozen=True)
class UnreadFormat:
    """One format that is not read.

    Attributes:
        what: Its name with an article.
        code: Python that makes an array of a file, `{}` for its path; empty where there is no single line.
        hint: What to do instead, where no line of Python does it.

    """

    what: str
    code: str = ""
    hint: str = ""


UNPACK = "Unpack it, and give the folder that comes out."
FRAMES = "Save its frames as pictures: `ffmpeg -i FILE frames/%05d.png`, and give the folder."
PICTURE, SOUND = "Convert it to .jpg or .png.", "Convert it to .wav or .flac."
TORCH = UnreadFormat("a file of PyTorch", "torch.load({}).numpy()")
ZIP, TAR = UnreadFormat("a ZIP archive", hint=UNPACK), UnreadFormat("a tar archive", hint=UNPACK)
WEB_PAGE = UnreadFormat("a web page", hint="Download the file itself: its link gave a page, perhaps for signing in.")
STATS = UnreadFormat("a file of statistics", hint="Give what `onnxq calibrate` wrote with --stats.")
BY_SUFFIX = {
    **dict.fromkeys((".pt", ".pth", ".ckpt"), TORCH),
    **dict.fromkeys((".pkl", ".pickle"), UnreadFormat("a pickled object of Python", "pickle.load(open({}, 'rb'))")),
    ".safetensors": UnreadFormat("a safetensors file", "safetensors.numpy.load_file({})['NAME']"),
    **dict.fromkeys((".parquet", ".pq"), UnreadFormat("a Parquet table", "pandas.read_parquet({}).to_numpy()")),
    **dict.fromkeys((".feather", ".arrow"), UnreadFormat("an Arrow table", "pandas.read_feather({}).to_numpy()")),
    **dict.fromkeys((".xlsx", ".xls"), UnreadFormat("an Excel table", "pandas.read_excel({}).to_numpy()")),
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), UnreadFormat("an HDF5 file", "h5py.File({})['NAME'][:]")),
    **dict.fromkeys((".edf", ".bdf"), UnreadFormat("an EDF recording", "mne.io.read_raw({}).get_data()")),
    **dict.fromkeys((".dcm", ".dicom"), UnreadFormat("a DICOM picture", "pydicom.dcmread({}).pixel_array")),
    **dict.fromkeys((".nii",), UnreadFormat("a NIfTI volume", "nibabel.load({}).get_fdata()")),
    **dict.fromkeys((".nc", ".nc4"), UnreadFormat("a NetCDF file", "xarray.open_dataset({})['NAME'].to_numpy()")),
    ".arrows": UnreadFormat("an Arrow stream", "pyarrow.ipc.open_stream({}).read_all().to_pandas().to_numpy()"),
    ".zarr": UnreadFormat("a Zarr store", "zarr.open({})['NAME'][:]"),
    ".mat": UnreadFormat("a MATLAB file", "scipy.io.loadmat({})['NAME']"),
    **dict.fromkeys(
        (".tfrecord", ".tfrecords"), UnreadFormat("a TFRecord file", "tensorflow.data.TFRecordDataset({})")
    ),
    **dict.fromkeys((".lmdb", ".mdb"), UnreadFormat("an LMDB database", "lmdb.open({})")),
    **dict.fromkeys((".zip", ".7z", ".rar"), UnreadFormat("an archive", hint=UNPACK)),
    **dict.fromkeys((".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst"), UnreadFormat("an archive", hint=UNPACK)),
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv", ".webm"), UnreadFormat("a video", hint=FRAMES)),
    **dict.fromkeys(
        (".gif", ".tif", ".tiff", ".heic", ".heif", ".avif"), UnreadFormat("a picture of another kind", hint=PICTURE)
    ),
    **dict.fromkeys((".mp3", ".ogg", ".m4a", ".aac", ".opus"), UnreadFormat("a recording of another kind", hint=SOUND)),
}
BY_BYTES = (
    (b"PAR1", BY_SUFFIX[".parquet"]),
    (b"ARROW1", BY_SUFFIX[".arrow"]),
    (b"\x89HDF\r\n", BY_SUFFIX[".h5"]),
    (b"MATLAB", BY_SUFFIX[".mat"]),
    (
        b"SQLite format 3",
        UnreadFormat("an SQLite database", "pandas.read_sql('SELECT …', sqlite3.connect({})).to_numpy()"),
    ),
    *((bytes([0x80, protocol]), BY_SUFFIX[".pkl"]) for protocol in range(2, 6)),
    (b"PK\x03\x04", ZIP),
    (b"\x1f\x8b", UnreadFormat("a gzip archive", hint=UNPACK)),
    (b"BZh", UnreadFormat("a bzip2 archive", hint=UNPACK)),
    (b"\xfd7zXZ", UnreadFormat("an xz archive", hint=UNPACK)),
    (b"7z\xbc\xaf", UnreadFormat("a 7-Zip archive", hint=UNPACK)),
    (b"Rar!", UnreadFormat("a RAR archive", hint=UNPACK)),
    (b"\x28\xb5\x2f\xfd", UnreadFormat("a Zstandard archive", hint=UNPACK)),
    (b"%PDF", UnreadFormat("a PDF document", hint="Save its pages as pictures, or its text as .txt.")),
    (b"\x93NUMPY", UnreadFormat("a NumPy array with another ending", hint="Name it .npy.")),
    (b"\xff\xd8\xff", UnreadFormat("a JPEG picture with another ending", hint="Name it .jpg.")),
    (b"\x89PNG", UnreadFormat("a PNG picture with another ending", hint="Name it .png.")),
    (b"RIFF", UnreadFormat("a RIFF file with another ending", hint="Name a recording .wav, and a picture .webp.")),
    (b"fLaC", UnreadFormat("a FLAC recording with another ending", hint="Name it .flac.")),
)


def unread_format(path: Path, inputs: Sequence[InputSpec], *, text: bool) -> UnreadFormat | None:
    """Name the format of a file that is not read; None where nothing tells it.

    Args:
        path: The file.
        inputs: What the model wants: a line of Python gives arrays of their shapes.
        text: Whether the model takes sentences.

    """
    suffix, start = path.suffix.lower(), _start(path)
    if suffix in BY_SUFFIX:
        return _for_text(BY_SUFFIX[suffix], path) if text else BY_SUFFIX[suffix]
    if is_web_page(start):
        return WEB_PAGE
    if suffix in (*PICTURE_SUFFIXES, *SOUND_SUFFIXES):
        return None
    if suffix == ".stats":
        return STATS
    found = next((kind for mark, kind in BY_BYTES if start.startswith(mark)), None)
    if found is not None:
        return _for_text(found, path) if text else found
    if start[TAR_MARK:].startswith(b"ustar"):
        return TAR
    if suffix in (".bin", ".raw", ".dat"):
        return UnreadFormat("a file of bytes without a shape", _raw_code(inputs))
    if suffix == ".json" and start.lstrip()[:1] == b"{" and re.search(rb'"(images|annotations|info)"\s*:', start):
        return UnreadFormat("a list of pictures as COCO has it", hint="Give the folder that the pictures are in.")
    if suffix == ".json":
        hint = "Write a sentence in each line of a .txt file, or an object in each line of a .jsonl file."
        return (
            UnreadFormat("a JSON file", hint=hint)
            if text
            else UnreadFormat("a JSON file", f"numpy.array(json.load(open({{}})){_json_part(start, inputs)})")
        )
    if suffix == ".jsonl":
        return _lines_of_json(path, inputs)
    return _table(path, inputs, suffix) if suffix in (".csv", ".tsv") else None


def _json_part(start: bytes, inputs: Sequence[InputSpec]) -> str:
    """Return what picks the array of an input from a JSON object, by its first bytes; empty for a list."""
    if start.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] != b"{":
        return ""
    names = [name.decode("utf-8", "replace") for name in re.findall(rb'"([^"\\]+)"\s*:\s*\[', start)]
    name = next((spec.name for spec in inputs if spec.name in names), names[0] if names else "NAME")
    return f"[{name!r}]"


def _for_text(found: UnreadFormat, path: Path) -> UnreadFormat:
    """Turn a table of pandas into lines of JSON, which are read, for a model that takes sentences."""
    if not found.code.endswith(ARRAY):
        return found
    made = str(path.with_suffix(".jsonl"))
    code = found.code.removesuffix(ARRAY).format(repr(str(path)))
    hint = f"Make lines of JSON of it: {code}.to_json({made!r}, orient='records', lines=True), and give {made}."
    return replace(found, code="", hint=hint)


def _lines_of_json(path: Path, inputs: Sequence[InputSpec]) -> UnreadFormat | None:
    """Describe lines of JSON that hold arrays, or a list of them; None where the first one holds something else."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            line = next(file, "")
            first = json.loads(line + file.read() if line.strip() == "[" else line)
            whole = isinstance(first, list) and bool(first) and isinstance(first[0], list | dict) and not next(file, "")
    except (OSError, ValueError, RecursionError):
        return None
    part, first = "", first[0] if whole else first
    if isinstance(first, dict):
        names = [name for name, value in first.items() if isinstance(value, list)]
        name = next((spec.name for spec in inputs if spec.name in names), names[0] if names else None)
        if name is None:
            return None
        first, part = first[name], f"[{name!r}]"
    if not isinstance(first, list):
        return None
    if whole:
        return UnreadFormat("a list of JSON", f"numpy.array([one{part} for one in json.load(open({{}}))])")
    return UnreadFormat("lines of JSON", f"numpy.array([json.loads(line){part} for line in open({{}})])")


def is_array_file(path: Path, suffix: str) -> bool:
    """Whether a file is whole and holds what NumPy writes to files that end so, whatever its own name."""
    return zipfile.is_zipfile(path) if suffix == ".npz" else _start(path).startswith(b"\x93NUMPY")


def begins_like(path: Path) -> str:
    """Say what a file begins like, for one whose content is not what its name says; empty where nothing tells it."""
    start = _start(path)
    if start.startswith(b"PK\x03\x04"):
        return "" if zipfile.is_zipfile(path) else "it begins like a ZIP file, and its end is missing"
    if start.startswith(b"\x93NUMPY"):
        return "it begins like a .npy file"
    found = next((kind for mark, kind in BY_BYTES if start.startswith(mark)), None)
    if found is not None:
        return f"it begins like {found.what.removesuffix(' with another ending')}"
    if is_web_page(start):
        return "it begins like a web page"
    return "it begins like text" if start and _is_text(start) else ""


def remedy_for(path: Path) -> str:
    """Say what to do about a file whose content is of another kind than its name; empty where nothing tells it."""
    start = _start(path)
    if start.startswith(b"PK\x03\x04"):
        return ""
    if is_web_page(start):
        return WEB_PAGE.hint
    if start.startswith(b"\x1f\x8b"):
        return f"Unpack it: mv {shell_path(path)} {shell_path(f'{path}.gz')} && gunzip {shell_path(f'{path}.gz')}."
    return next((kind.hint for mark, kind in BY_BYTES if start.startswith(mark)), "")


def is_web_page(start: bytes) -> bool:
    """Whether a file begins as pages of the web do."""
    return start.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html"))


def pictures_without_ending(files: Sequence[Path]) -> str:
    """Say that files without an ending are pictures by their first bytes; empty where they are not."""
    bare = [file for file in files if not file.suffix and file.is_file()]
    for mark, name, ending in ((b"\x89PNG", "PNG", ".png"), (b"\xff\xd8\xff", "JPEG", ".jpg")):
        if bare and all(_start(file).startswith(mark) for file in bare[:3]):
            return f"{counted(len(bare), 'file')} without an ending begin like {name} pictures: name them {ending}."
    return ""


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(START)
    except OSError:
        return b""


def _is_text(start: bytes) -> bool:
    return b"\0" not in start and sum(byte < 9 or 13 < byte < 32 for byte in start) == 0


def _raw_code(inputs: Sequence[InputSpec]) -> str:
    spec = inputs[0] if len(inputs) == 1 else None
    if spec is None or spec.numpy_dtype is None or spec.shape is None:
        return "numpy.fromfile({}, DTYPE).reshape(SHAPE)"
    sizes = [-1, *(spec.fixed(axis) or "?" for axis in range(1, len(spec.shape)))]
    return f"numpy.fromfile({{}}, '{spec.numpy_dtype.name}').reshape({', '.join(map(str, sizes))})"


def _table(path: Path, inputs: Sequence[InputSpec], suffix: str) -> UnreadFormat:
    """Describe a table in text: of numbers, or of paths."""
    encoding = _encoding(path)
    try:
        with path.open(encoding=encoding or "utf-8", errors="replace", newline="") as file:
            lines = [line for line, _ in zip(file, range(2), strict=False)]
    except OSError:
        lines = []
    first, rows = lines[0] if lines else "", []
    delimiter = "\t" if suffix == ".tsv" else next((sign for sign in DELIMITERS if sign in first), ",")
    with suppress(csv.Error):  # a quote that nothing closes
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
    cells = [cell.lower() for row in rows[1:] or rows for cell in row]
    if any(cell.endswith((*PICTURE_SUFFIXES, *SOUND_SUFFIXES)) for cell in cells):
        hint = "Write a path in each line of a .txt file; the number of a class may stand behind it."
        return UnreadFormat("a table that names files", hint=hint)
    shape = inputs[0].shape if len(inputs) == 1 else None
    width = inputs[0].fixed(1) if shape is not None and len(shape) == 2 else None
    more = f", delimiter={delimiter!r}" + _loading(rows, width)
    more += f", encoding={encoding!r}" if encoding else ""
    return UnreadFormat("a table in text", f"numpy.loadtxt({{}}, 'float32'{more})")


def _encoding(path: Path) -> str:
    """Name the encoding of a text file by its first bytes; empty where it is UTF-8."""
    start = _start(path)
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return "latin-1" if error.start < len(start) - MOST_OF_LETTER else ""
    return ""


def _loading(rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Write further arguments of `numpy.loadtxt`, for the first two rows of a table and the columns of an input."""
    if not rows:
        return ""
    head = not all(_is_number(cell) for cell in rows[0])
    more = ", skiprows=1" if head else ""
    row = rows[-1]
    columns = [column for column, cell in enumerate(row) if _is_number(cell)]
    is_numbered = head and rows[0][0].lower() in INDEX
    if is_numbered and (width is None or len(columns) > width) and columns[:1] == [0] and len(columns) > 1:
        del columns[0]
    columns = columns[:width]
    if columns and columns != list(range(len(row))):
        whole = columns == list(range(columns[0], columns[-1] + 1))
        start = f"{columns[0]}, " if columns[0] else ""
        more += f", usecols=range({start}{columns[-1] + 1})" if whole else f", usecols={columns}"
    if any(DECIMAL_COMMA.fullmatch(row[column]) for column in columns):
        more += ", converters=lambda cell: float(cell.replace(',', '.'))"
    return more


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return DECIMAL_COMMA.fullmatch(text) is not None
    return True
