import os
from pathlib import Path

import pytest

from onnxq.errors import ProjectError
from onnxq.pipeline.options import QuantizeOptions
from onnxq.project.entry import Entry, Project
from onnxq.project.file import parse_project
from onnxq.project.one_model import find_entry, flags, override


def project(root: Path = Path(), **more: object) -> Project:
    models = [{"float": "models/a.onnx", "data": ["data/c.npz"], "samples": 4, **more}, {"float": "models/b.onnx"}]
    return parse_project({"models": models}, root / "onnxq.toml")


def entry(**more: object) -> Entry:
    return project(**more).entries[0]


def changed(given: dict[str, object], **more: object) -> QuantizeOptions:
    return override(entry(**more), QuantizeOptions(**given), given.keys()).options  # type: ignore[arg-type]


def test_an_entry_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "link.onnx").symlink_to("models/a.onnx")
    monkeypatch.chdir(tmp_path / "models")
    listed = project(Path(".."))
    assert find_entry(listed, Path("a.onnx")) == listed.entries[0]
    assert find_entry(listed, tmp_path / "models" / "b.onnx") == listed.entries[1]
    assert find_entry(listed, Path("../link.onnx")) == listed.entries[0]
    assert find_entry(listed, Path("c.onnx")) is None


def test_of_several_entries_the_output_chooses() -> None:
    models = [{"float": "a.onnx", "quantized": name} for name in ("small.onnx", "fast.onnx")]
    listed = parse_project({"models": models}, Path("onnxq.toml"))
    assert find_entry(listed, Path("a.onnx"), Path("fast.onnx")) == listed.entries[1]
    with pytest.raises(ProjectError, match=r"lists a\.onnx 2 times, as small\.onnx and fast\.onnx") as error:
        find_entry(listed, Path("a.onnx"))
    assert error.value.hint == "Name one of them with --output, as in --output small.onnx."


def test_what_is_given_wins_and_the_rest_stays() -> None:
    found = changed({"samples": 8, "exclude": ("/head/*",)})
    assert (found.samples, found.exclude, found.data) == (8, ("/head/*",), ("data/c.npz",))
    both = override(entry(thresholds={"min-sqnr": 20, "min-cosine": 0.9}), QuantizeOptions(min_sqnr=30.0), ["min_sqnr"])
    assert (both.options.min_sqnr, both.thresholds.min_sqnr, both.thresholds.min_cosine) == (30.0, 30.0, 0.9)


def test_a_recipe_takes_the_place_of_bits_and_bits_that_of_a_recipe() -> None:
    assert changed({"recipe": "dynamic-int8"}, bits=4, block=64).bits is None
    found = changed({"bits": 4}, recipe="dynamic-int8")
    assert (found.recipe, found.bits) == ("auto", 4)


def test_an_option_that_needs_another_one_is_refused() -> None:
    with pytest.raises(ProjectError, match="has 'max-drop', but no 'metric'"):
        changed({"max_drop": 0.1})
    assert changed({"max_drop": 0.1}, metric="top1").max_drop == 0.1


def test_paths_of_the_command_line_begin_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    given = QuantizeOptions(
        data=("d.npz", "/far/e.npz", "module:function"),
        recipe="r.toml",
        tokenizer=Path("t.json"),
        custom_ops=(Path("../l.so"),),
    )
    found = override(project(Path("..")).entries[0], given, ["data", "recipe", "tokenizer", "custom_ops"])
    assert found.options.data == ("models/d.npz", "/far/e.npz", "module:function")
    assert found.recipe_source() == os.path.join("..", "models", "r.toml")
    assert (found.tokenizer(), found.options.custom_ops) == (Path("../models/t.json"), (Path("l.so"),))


def test_options_are_named_as_they_are_typed() -> None:
    assert flags({"min_sqnr", "data"}) == ["--data", "--min-sqnr"]
