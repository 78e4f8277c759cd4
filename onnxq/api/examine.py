"""Figures of the samples that a model is going to see.

Tests: `tests/api/test_api_examples.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.data.examine import Examination, some_of
from onnxq.data.examine import examine as examine_samples
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import list_sources
from onnxq.data.validation import InputSpec
from onnxq.data.validation import input_specs as specs_of
from onnxq.errors import DataError
from onnxq.ir import ModelInput, infer_types, read_model
from onnxq.progress import Observer, following
from onnxq.stages.files import open_data


def input_specs(model: ModelInput) -> list[InputSpec]:
    """List the inputs that a caller must feed: graph inputs that have no initializer.

    Args:
        model: Its path, a ModelProto, or loaded.

    Returns:
        Name, dtype and shape of each.

    Raises:
        ModelError: The model cannot be read.

    Examples:
        >>> import onnxq
        >>> [str(spec) for spec in onnxq.input_specs("model.onnx")]
        ['float32[n, 3, 8, 8]']

    """
    read = read_model(model)
    infer_types(read)
    return specs_of(read)


def examine(
    model: ModelInput,
    *,
    data: str | Path | Sequence[str | Path] = (),
    reading: Reading = PLAIN,
    samples: object = None,
    sample_limit: int | None = None,
    observer: Observer | None = None,
) -> Examination:
    """Look at samples before anything expensive is done with them.

    Args:
        model: A float ONNX model: its path, a ModelProto, or loaded.
        data: What samples are read from, one source or several, as for `quantize`.
        reading: How data that are no arrays become samples.
        samples: Instead of `data`: as for `onnxq.quantize`.
        sample_limit: Use no more samples. By default all, or some spread evenly where all of them hold very much.
        observer: Told about each step.

    Returns:
        Figures of each input, and a warning for each thing that looks wrong.

    Raises:
        DataError: There are no data, or they do not fit the model.

    Examples:
        >>> import onnxq
        >>> seen = onnxq.examine("model.onnx", data="calibration.npz")
        >>> seen.samples, seen.inputs[0].name
        (16, 'image')

    """
    sources = list_sources(data)
    with following(observer) as progress:
        progress.step("load")
        read = read_model(model)
        infer_types(read)
        given = open_data(read, sources, samples, sample_limit, reading, passes=1)
        if given is None:
            raise DataError("no data is given", "Add --data.")
        given = given if sample_limit is not None else some_of(given)
        progress.step("examine")
        return examine_samples(read, given, progress=progress.progress)
