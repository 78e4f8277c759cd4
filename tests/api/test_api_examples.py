"""The example of each public function runs as it stands, beside `model.onnx`, `calibration.npz` and `small.onnx`."""

from __future__ import annotations

import doctest
import inspect
import shutil
from pathlib import Path
from types import FunctionType

import numpy as np
import onnx
import pytest
from helpers import build, floats, node

import onnxq
from onnxq.api import words

FUNCTIONS = [name for name in onnxq.__all__ if isinstance(getattr(onnxq, name), FunctionType)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small classifier, 16 pictures, and what a quick run makes of them."""
    folder = tmp_path_factory.mktemp("made")
    nodes = [
        node("Conv", "image w1", "c1", name="conv1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1", name="relu1"),
        node("Conv", "r1 w2", "c2", name="conv2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2", name="relu2"),
        node("GlobalAveragePool", "r2", "p", name="pool"),
        node("Flatten", "p", "f", name="flatten"),
        node("Gemm", "f w3", "scores", name="head"),
    ]
    weights = {"w1": floats(16, 3, 3, 3) / 5, "w2": floats(16, 16, 3, 3, seed=1) / 12, "w3": floats(16, 4, seed=2)}
    onnx.save(build(nodes, {"image": ["n", 3, 8, 8]}, ("scores",), weights), folder / "model.onnx")
    np.savez(folder / "calibration.npz", image=floats(16, 3, 8, 8, seed=3))
    data, output = folder / "calibration.npz", folder / "small.onnx"
    onnxq.quantize(folder / "model.onnx", "static-int8", data=data, output=output, fast=True)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with all of them."""
    folder = Path(shutil.copytree(made, tmp_path / "here"))
    monkeypatch.chdir(folder)
    return folder


def run(function: object, name: str) -> None:
    (test,) = doctest.DocTestFinder(recurse=False).find(function, name, globs={})
    assert test.examples, f"{name} has no example"
    test.globs["in_python"] = words.in_python
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_function_runs(name: str, here: Path) -> None:
    run(getattr(onnxq, name), name)


def test_the_example_of_words_runs() -> None:
    run(words.in_python, "in_python")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_and_gives(name: str) -> None:
    function = getattr(onnxq, name)
    text = inspect.getdoc(function) or ""  # Python 3.13 takes away what lines have in front, and others do not
    for keyword in function.__annotations__:
        if keyword != "return":
            assert f"\n    {keyword}: " in text or f", {keyword}: " in text, keyword
    assert "Returns:" in text or str(function.__annotations__["return"]) == "None"
