"""Does a sample fit the model? Names, rank, fixed dimensions, dtype, finite numbers; and the casts that are safe.

Tests: `tests/data/test_samples.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onnxq.data.layouts import layout_hint
from onnxq.errors import DataError
from onnxq.ops.forms.family import dtype_name
from onnxq.text import did_you_mean

if TYPE_CHECKING:
    from onnxq.ir import Model, Value

STATISTICS = frozenset({"format", "fingerprint", "names", "samples"})  # arrays of a file of a calibration
SPARSE = frozenset({"data", "format", "shape"})  # arrays of scipy.sparse.save_npz
SPARSE_HINT = "It holds a sparse matrix: save scipy.sparse.load_npz(file).toarray()."
LABELS = re.compile(r"(y|labels?|targets?)([_-].*)?\.npy(, .*)?", re.IGNORECASE)  # files of labels, mostly
NAMELESS = re.compile(r"arr_\d+")  # what NumPy calls an array that has no name
MOST_FIELDS = 8  # that are named
CONTAINERS = ("sequence_type", "optional_type", "map_type")
WITHOUT_KERNELS = (onnx.TensorProto.BFLOAT16,)
Sample = dict[str, np.ndarray]
TENSOR = "Give an array of NumPy; of a tensor of PyTorch, that is tensor.detach().cpu().numpy()."
# Arrays by a word in their names, for texts that nothing fills up and that have one part
TOKEN_ARRAYS = {"mask": "numpy.ones_like({})", "token_type": "numpy.zeros_like({})", "segment": "numpy.zeros_like({})"}
PLAIN_ARRAY = "Give a plain numeric array: rows of different lengths go into separate samples."


@dataclass(frozen=True)
class InputSpec:
    """The type and shape of one input of a model.

    Attributes:
        name: Name of the input.
        dtype: A value of `onnx.TensorProto.DataType`; None while unknown.
        shape: An integer, a symbolic name or None for each dimension; None while the rank is unknown.
        container: What holds its tensors: `sequence`, `optional` or `map`; empty where it is a tensor.

    """

    name: str
    dtype: int | None
    shape: tuple[int | str | None, ...] | None
    container: str = ""

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The NumPy dtype to feed; None while unknown."""
        return None if self.dtype is None else np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.dtype))

    def fixed(self, axis: int) -> int | None:
        """Size of dimension `axis` where the model fixes it (exporters write 0 for a size they don't know)."""
        size = self.shape[axis] if self.shape else None
        return size if isinstance(size, int) and size > 0 else None

    def __str__(self) -> str:
        kind = "" if self.dtype is None else dtype_name(self.dtype)
        dims = "" if self.shape is None else "[" + ", ".join("?" if d is None else str(d) for d in self.shape) + "]"
        return f"{kind}{dims}"


class UnknownName(DataError):
    """An array of data has a name that is no input of the model.

    Attributes:
        name: Of the array.

    """

    def __init__(self, message: str, hint: str, name: str) -> None:
        super().__init__(message, hint)
        self.name = name


def input_specs(model: Model) -> list[InputSpec]:
    """List the inputs that a caller must feed: graph inputs that have no initializer."""
    wanted = [value for value in model.graph.inputs if value.tensor is None]
    return [InputSpec(v.name, v.dtype, v.shape, _container(model, v) if v.dtype is None else "") for v in wanted]


def _container(model: Model, value: Value) -> str:
    info = model.graph.infos.get(value.name, b"")
    kind = onnx.ValueInfoProto.FromString(bytes(info)).type.WhichOneof("value") or ""
    return kind.removesuffix("_type") if kind in CONTAINERS else ""


def refuse_unfed(inputs: Iterable[InputSpec]) -> None:
    """Refuse a model with an input that onnxruntime's CPU cannot be fed with arrays.

    Raises:
        DataError: An input is no tensor, or has a type without arithmetic on a CPU.

    """
    for spec in inputs:
        if spec.container:
            told = f"input '{spec.name}' is of the kind {spec.container}, and samples are tensors"
            raise DataError(told, "Export the model with a tensor in its place.")
        if spec.dtype in WITHOUT_KERNELS:
            told = f"input '{spec.name}' is {spec}, which onnxruntime does not compute with on a CPU"
            raise DataError(told, "Export the model in float32.")


def check_names(names: Iterable[str], inputs: Sequence[InputSpec], where: str) -> list[str]:
    """Return the names that are inputs, dropping those that start with `_`.

    Raises:
        DataError: A name is no input of the model, or an input is missing.

    """
    refuse_unfed(inputs)
    wanted = [spec.name for spec in inputs]
    given = []
    for name in names:
        if not isinstance(name, str):
            raise DataError(f"{where} has {name!r} for the name of an array", "Names are strings, those of the inputs.")
        if not is_label(name, inputs):
            given.append(name)
    if STATISTICS.issubset(given) and not STATISTICS.intersection(wanted):
        raise DataError(f"{where} holds statistics of a calibration, and no samples", "Give it with --stats.")
    for name in given:
        if name not in wanted:
            if not wanted:
                raise UnknownName(f"{where} has '{name}', and the model has no inputs", "Leave out the data.", name)
            guess = did_you_mean(name, wanted, cutoff=0.6)
            own = wanted[0] if len(wanted) == 1 and wanted[0].isidentifier() else "NAME"
            if SPARSE.issubset(given):
                guess = SPARSE_HINT
            elif NAMELESS.fullmatch(name):
                guess = f"It was saved without a name: write numpy.savez(file, {own}=array)."
            elif all(one in given for one in wanted):  # it says something about the samples: labels, mostly
                guess = f"If it holds labels, call it '_{name}'."
            elif not guess and own != "NAME":
                guess = f"Save the samples under the input's name: numpy.savez(file, {own}=array)."
            raise UnknownName(
                f"{where} has '{name}', which is no input of the model",
                f"{guess} The model's inputs are {_listing(wanted)}; a name that starts with _ is ignored.".lstrip(),
                name,
            )
    for spec in inputs:
        if spec.name not in given:
            fed = f" {_made_of(spec, inputs)}" if given else ""
            raise DataError(
                f"{where} has no array for input '{spec.name}' ({spec})",
                f"Every sample needs {_listing(wanted)}; this one has {_listing(given)}.{fed}"
                if given
                else f"Save one array for each of {_listing(wanted)}: numpy.savez(file, {spec.name}=array).",
            )
    return given


def _made_of(spec: InputSpec, inputs: Sequence[InputSpec]) -> str:
    """Say what an array that is missing can be made of: ids of texts that nothing fills up, or an output."""
    ids = [one.name for one in inputs if one is not spec and one.dtype == spec.dtype and one.shape == spec.shape]
    kind = next((call for word, call in TOKEN_ARRAYS.items() if word in spec.name.lower()), None)
    if kind is None or not ids:
        return "To feed an output to it from step to step, pass --state OUTPUT=INPUT."
    return f"'{spec.name}' is {kind.format(ids[0])} for texts of one length and one part."


def is_label(name: str, inputs: Sequence[InputSpec]) -> bool:
    """Whether an array says something about the samples that no input of the model takes."""
    return name.startswith("_") and all(spec.name != name for spec in inputs)


def check_shape(
    shape: tuple[int, ...], spec: InputSpec, where: str, *, behind: int = 0, rows: int | None = None
) -> None:
    """Refuse one sample's shape that the model cannot take; `behind` and `rows` are for `layout_hint`.

    Raises:
        DataError: The rank or a fixed dimension differs.

    """
    if spec.shape is None:
        return
    if len(shape) == len(spec.shape) and all(spec.fixed(axis) in (None, size) for axis, size in enumerate(shape)):
        return
    wanted = [spec.fixed(axis) for axis in range(len(spec.shape))]
    advice = layout_hint(shape, wanted, behind=behind, rows=rows)
    if LABELS.fullmatch(where) and len(shape) < len(spec.shape):
        advice = (
            f"If it holds labels, save both: numpy.savez('data.npz', **{{{spec.name!r}: array, '_label': labels}})."
        )
    if len(shape) != len(spec.shape):
        raise DataError(
            f"input '{spec.name}' has rank {len(spec.shape)} ({spec}), {where} gives rank {len(shape)} {list(shape)}",
            advice or "A sample has the input's own rank; in a file, one leading dimension more is a stack of samples.",
        )
    for axis, size in enumerate(shape):
        fixed = spec.fixed(axis)
        if fixed is not None and size != fixed:
            raise DataError(
                f"input '{spec.name}' has {fixed} in dimension {axis} ({spec}), {where} gives {size} {list(shape)}",
                advice or "Prepare the data the way the model's own inputs are prepared.",
            )


def conform(raw: Mapping[str, Any], inputs: Sequence[InputSpec], where: str) -> Sample:
    """Turn raw arrays into a sample that onnxruntime takes.

    Casts that are done: between float widths. Integers and booleans to another integer type when every value fits.
    Integers and booleans to a float type that holds every value of theirs (uint8 → float32, not int64 → float32). 0 and
    1 to boolean. Everything else is refused: a float fed to an integer input is nearly always a mistake.

    Args:
        raw: One sample, arrays or what NumPy makes arrays of. It may hold further names that start with `_`.
        inputs: What the model wants.
        where: Names the sample in messages, such as `calib.npz, sample 3`.

    Returns:
        A C-contiguous array of exactly the wanted dtype for each input, in the order of `inputs`.

    Raises:
        DataError: A name, rank, fixed dimension or dtype is wrong, or a float is NaN or infinite.

    """
    check_names(raw, inputs, where)
    sample = {}
    for spec in inputs:
        array = _as_array(raw[spec.name], spec, where)
        check_shape(array.shape, spec, where)
        array = _cast(array, spec, where)
        if array.dtype.kind == "f":
            check_finite(array, f"input '{spec.name}'", where)
        sample[spec.name] = array if array.flags.c_contiguous else array.copy(order="C")
    return sample


def to_array(given: Any, what: str) -> np.ndarray:
    """Return what NumPy makes of an array of any library.

    Raises:
        DataError: It does not let NumPy: a tensor of PyTorch that is trained, or that is not in memory. Or a part of
            it is masked: no model of onnxruntime knows of masks.
        ValueError: It is a list of rows of different lengths.

    """
    masked = sys.modules.get("numpy.ma")  # loading it takes longer than looking at all samples of many a set
    if masked is not None and isinstance(given, masked.MaskedArray) and masked.is_masked(given):
        raise DataError(f"{what} is a masked array, whose mask would be lost", "Fill it as in use: array.filled(0).")
    try:
        return np.asarray(given)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"{what} gives no array: {str(error).splitlines()[0]}", TENSOR) from error


def _as_array(given: Any, spec: InputSpec, where: str) -> np.ndarray:
    what = f"input '{spec.name}' in {where}"
    try:
        found = to_array(given, what)
    except ValueError as error:
        raise DataError(f"{what} is a list of rows of different lengths", PLAIN_ARRAY) from error
    if found.dtype.hasobject and not found.shape and spec.numpy_dtype != np.dtype(object):
        raise DataError(f"{what} is a Python object of type {type(given).__name__}", TENSOR)
    return found


def check_finite(array: np.ndarray, what: str, where: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        DataError: Names `what`, the index of the first bad element and `where`.

    """
    if np.isfinite(array).all():
        return
    position = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
    kind = "NaN" if np.isnan(array[position]) else "infinity"
    raise DataError(
        f"{what} holds {kind} at {[int(i) for i in position]} in {where}",
        "Nothing can be measured from it: remove the sample or mend its data.",
    )


def _cast(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    want = spec.numpy_dtype
    if array.dtype.hasobject and want != np.dtype(object):
        raise DataError(f"input '{spec.name}' in {where} is an array of Python objects", PLAIN_ARRAY)
    if want is None or array.dtype == want:
        return array
    have, kinds = array.dtype, (array.dtype.kind, want.kind)
    if kinds == ("U", "O"):
        return array.astype(object)
    if kinds == ("f", "f"):
        with np.errstate(over="ignore"):  # a value too large becomes infinity, which check_finite names
            return array.astype(want)
    refuse_no_numbers(have, spec, where)
    if kinds[0] in "iub" and kinds[1] == "f" and np.can_cast(have, want, "safe"):
        return array.astype(want)
    if kinds[0] in "iub" and kinds[1] in "iub":
        low, high = (0, 1) if want.kind == "b" else (np.iinfo(want).min, np.iinfo(want).max)
        outside = (array < low) | (array > high) if have.kind != "b" else np.zeros(array.shape, bool)
        if outside.any():
            raise DataError(
                f"input '{spec.name}' takes {want.name}, {where} gives {have.name} with the value "
                f"{array[outside][0]}, which does not fit",
                "Check that this is the array the input wants.",
            )
        return array.astype(want)
    convert = f"Convert it with .astype('{want.name}') if the numbers mean what the model wants."
    raise DataError(
        f"input '{spec.name}' takes {want.name}, {where} gives {have.name}",
        "Give real numbers: .real, .imag or numpy.abs, as the model wants." if have.kind == "c" else convert,
    )


def refuse_no_numbers(have: np.dtype[Any], spec: InputSpec, where: str) -> None:
    """Refuse records, strings and dates for an input of numbers.

    Raises:
        DataError: As it says.

    """
    want = spec.numpy_dtype
    if have.names is not None:
        shown = ", ".join(have.names[:MOST_FIELDS]) + (", …" if len(have.names) > MOST_FIELDS else "")
        alike = len({have[name] for name in have.names}) == 1  # columns of a table, mostly
        hint = f"Save one of them as an array of its own: array[{spec.name if spec.name in have.names else 'FIELD'!r}]."
        if alike and spec.name not in have.names:
            hint = "Save the numbers alone: numpy.lib.recfunctions.structured_to_unstructured(array)."
        raise DataError(f"input '{spec.name}' in {where} has fields: {shown}", hint)
    if want is not None and want.kind in "fiub" and have.kind in "USTM":
        raise DataError(
            f"input '{spec.name}' takes {want.name}, {where} gives {'dates' if have.kind == 'M' else 'strings'}",
            "Turn them into numbers as for training. Sentences are read from .txt, .jsonl and .csv files.",
        )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
