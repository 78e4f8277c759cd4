from pathlib import Path

import pytest

from onnxq.errors import ProjectError
from onnxq.project.file import parse_project
from onnxq.project.rules import RULES, check_codes, is_ignored, is_stale


def test_stale_stands_for_all_codes_that_begin_so() -> None:
    assert is_ignored("stale-version", ["stale"])
    assert is_ignored("stale-version", ["too-large", "stale-version"])
    assert not is_ignored("stale-version", ["stale-float"])
    assert not is_ignored("missing", ["stale"])
    assert {rule for rule in RULES if is_stale(rule)} == {rule for rule in RULES if is_ignored(rule, ["stale"])}


def test_a_code_that_no_finding_has_is_refused() -> None:
    check_codes(["stale", *RULES], "here")
    with pytest.raises(ProjectError, match="here names an unknown finding 'xyz'") as error:
        check_codes(["xyz"], "here")
    assert error.value.hint.startswith("Codes are stale, missing, ")


def test_a_project_switches_codes_off_for_all_models_or_for_one() -> None:
    models = [{"float": "a.onnx"}, {"float": "b.onnx", "ignore": ["too-large"]}]
    project = parse_project({"defaults": {"ignore": ["stale-version"]}, "models": models}, Path("onnxq.toml"))
    assert [entry.ignore for entry in project.entries] == [("stale-version",), ("too-large",)]
    with pytest.raises(ProjectError, match=r"onnxq\.toml: a\.onnx: 'ignore' names an unknown finding 'E501'"):
        parse_project({"models": [{"float": "a.onnx", "ignore": ["E501"]}]}, Path("onnxq.toml"))
    with pytest.raises(ProjectError, match="'ignore' must be a list of strings"):
        parse_project({"models": [{"float": "a.onnx", "ignore": "stale"}]}, Path("onnxq.toml"))
