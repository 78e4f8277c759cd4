"""Which reader a folder or a file that holds no arrays is for, by its name and by what the model takes.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.data.advice import other_data
from onnxq.data.npz import Source
from onnxq.data.pictures.files import (
    Pictures,
    holds_pictures,
    is_picture,
    read_data_yaml,
    read_folder_of_pictures,
    read_list_of_pictures,
)
from onnxq.data.pictures.source import picture_inputs, picture_source, takes_pictures
from onnxq.data.readers import holds_arrays, read_folder
from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.validation import InputSpec


def open_folder(folder: Path, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> list[Source]:
    """Open a folder: arrays, or pictures.

    Raises:
        DataError: It holds neither, or what it holds does not fit the model.

    """
    if holds_arrays(folder) or not holds_pictures(folder):
        return read_folder(folder, inputs)
    return [_of_pictures(read_folder_of_pictures(folder), inputs, reading, facts)]


def open_other(path: Path, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> Source:
    """Open a file that holds no arrays: a picture, or a list of pictures.

    Raises:
        DataError: It is nothing of the kind, or does not fit the model.

    """
    if is_picture(path):
        return _of_pictures(Pictures(str(path), ((path,),)), inputs, reading, facts)
    if path.suffix == ".txt" and takes_pictures(inputs, reading):
        wanted = picture_inputs(inputs, facts, reading)
        return picture_source(read_list_of_pictures(path, len(wanted.pictures)), wanted, facts)
    if path.suffix in (".yaml", ".yml") and takes_pictures(inputs, reading):
        return _of_pictures(read_data_yaml(path), inputs, reading, facts)
    raise other_data(path, inputs)


def _of_pictures(pictures: Pictures, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> Source:
    return picture_source(pictures, picture_inputs(inputs, facts, reading), facts)
