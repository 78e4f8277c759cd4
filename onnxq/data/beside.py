"""The files that data are, by suffix, and files next to a model that say how these are read: tokenizers and configs.

Tests: `tests/data/test_files_beside.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxq.data.reading import ModelFacts

BYTES = "bytes"  # `--tokenizer bytes`
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
PICTURES = ("preprocessor_config.json", "config.json", "metadata.yaml", "args.yaml")
SOUNDS = ("preprocessor_config.json", "feature_extractor_config.json", "config.json")
# Suffixes of what samples are read from, and of their like that nothing here reads
ARRAY_SUFFIXES = (".npz", ".npy")
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
SOUND_SUFFIXES = (".wav", ".flac")
SENTENCE_SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv")
LIST_SUFFIXES = (".txt", ".yaml", ".yml")  # of paths
OTHER_PICTURES = (
    *(".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".raw", ".dng", ".ppm"),
    *(".pgm", ".pnm", ".tga", ".ico", ".jfif", ".cr2", ".nef", ".arw"),
)
OTHER_SOUNDS = (".mp3", ".ogg", ".m4a", ".aac", ".opus", ".wma", ".aif", ".aiff", ".amr")


def files_beside(model: Path, data: Sequence[Path], tokenizer: Path | None = None) -> list[Path]:
    """List the files next to a model that its data may be read with.

    Args:
        model: Path of the float model.
        data: Files and folders of data.
        tokenizer: The `tokenizer.json`, or its folder, that the user names instead of the one next to the model.

    Returns:
        Those that exist, each once; none for arrays.

    """
    suffixes = {suffix for path in data for suffix in _suffixes(path)}
    facts = ModelFacts(model)
    found: list[Path | None] = []
    if suffixes & {*SENTENCE_SUFFIXES} and not (tokenizer is not None and makes_bytes(tokenizer)):
        folder = None if tokenizer is None else tokenizer if tokenizer.is_dir() else tokenizer.parent
        found += [facts.beside(name) if folder is None else folder / name for name in TOKENIZER]
        found += [tokenizer] if tokenizer is not None and not tokenizer.is_dir() else []
    if suffixes & {*PICTURE_SUFFIXES, *LIST_SUFFIXES}:
        found += [facts.beside(name) for name in (*PICTURES, model.with_suffix(".xml").name)]
    if suffixes & {*SOUND_SUFFIXES, ".txt"}:
        found += [facts.beside(name) for name in SOUNDS]
    return list(dict.fromkeys(path for path in found if path is not None and path.is_file()))


def makes_bytes(tokenizer: Path) -> bool:
    """Whether a tokenizer that the user names is no file, but the bytes of the text."""
    return tokenizer.name == BYTES and not tokenizer.exists()


def _suffixes(path: Path) -> Iterator[str]:
    """Yield the suffixes of a file, or of all files below a folder."""
    if path.is_dir():
        yield from {file.suffix.lower() for file in path.rglob("*")}
    else:
        yield path.suffix.lower()
