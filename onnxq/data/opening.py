"""Choose the reader of a folder or file without arrays, by its name and the inputs of the model.

Tests: `tests/data/test_picture_source.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxq.data.advice import other_data
from onnxq.data.beside import SENTENCE_SUFFIXES
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
from onnxq.data.sound.files import (
    holds_sounds,
    is_sound,
    names_sounds,
    read_folder_of_sounds,
    read_list_of_sounds,
    read_one_sound,
)
from onnxq.data.sound.source import sound_sources, takes_sound
from onnxq.data.text.roles import takes_text
from onnxq.data.text.sentences import read_sentences
from onnxq.data.text.source import text_source
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError
from onnxq.text import as_list


def open_folder(folder: Path, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> list[Source]:
    """Open a folder: arrays, pictures, or sounds.

    Raises:
        DataError: It holds neither, what it holds does not fit the model, or it is all of a disk.

    """
    if folder.resolve() == Path(folder.resolve().anchor):
        raise DataError(f"{folder} is the whole disk", "Give the folder that the samples are in.")
    if holds_arrays(folder):
        return read_folder(folder, inputs)
    if takes_sound(inputs, reading) and holds_sounds(folder):
        return sound_sources(read_folder_of_sounds(folder), inputs, facts, reading)
    if not holds_pictures(folder):
        return read_folder(folder, inputs)
    return [_of_pictures(read_folder_of_pictures(folder), inputs, reading, facts)]


def open_other(path: Path, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> list[Source]:
    """Open a file that holds no arrays: a picture, a sound, sentences, or a list of pictures or sounds.

    Raises:
        DataError: It is nothing of the kind, or does not fit the model.

    """
    suffix = path.suffix.lower()
    if is_picture(path):
        return [_of_pictures(Pictures(str(path), ((path,),)), inputs, reading, facts)]
    if is_sound(path) and takes_sound(inputs, reading):
        return sound_sources(read_one_sound(path), inputs, facts, reading)
    if suffix in SENTENCE_SUFFIXES and takes_text(inputs):
        sentences = read_sentences(path, as_list(reading.text_key))
        return [text_source(sentences, inputs, facts, reading)]
    if suffix == ".txt" and takes_sound(inputs, reading) and names_sounds(path):
        return sound_sources(read_list_of_sounds(path), inputs, facts, reading)
    if suffix == ".txt" and takes_pictures(inputs, reading):
        wanted = picture_inputs(inputs, facts, reading)
        return [picture_source(read_list_of_pictures(path, len(wanted.pictures)), wanted, facts)]
    if suffix in (".yaml", ".yml") and takes_pictures(inputs, reading):
        return [_of_pictures(read_data_yaml(path), inputs, reading, facts)]
    raise other_data(path, inputs)


def _of_pictures(pictures: Pictures, inputs: Sequence[InputSpec], reading: Reading, facts: ModelFacts) -> Source:
    return picture_source(pictures, picture_inputs(inputs, facts, reading), facts)
