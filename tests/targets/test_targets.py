"""Targets as data: what one file says, what it takes from another, and the family of the processor at hand."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from onnxq.errors import RecipeError
from onnxq.planning.recipe import load_recipe
from onnxq.targets import DEFAULT, host, load_costs
from onnxq.targets.tables import read_target, stored_targets, table_name
from onnxq.targets.target import load_target, target_names

PACKAGE = Path(__file__).parents[2] / "onnxq"
FAMILIES = [name for name in stored_targets() if name.startswith("cpu-")]
UNTIMED = ["generic", "openvino", "qnn", "tensorrt"]


def test_families_ask_for_what_cpu_asks_for_but_for_saturation_and_prompts() -> None:
    cpu = load_target("cpu")
    for name in FAMILIES:
        family = load_target(name)
        own = {"name": "cpu", "description": cpu.description, "saturates": True, "token_rows": cpu.token_rows}
        assert replace(family, **own) == cpu
    assert [name for name in stored_targets() if load_target(name).token_rows] == ["cpu", "cpu-avx2", "cpu-vnni"]


def test_products_saturate_on_targets_with_processors_without_vnni() -> None:
    assert [name for name in stored_targets() if load_target(name).saturates] == ["cpu", "cpu-avx2"]


@pytest.mark.parametrize("name", UNTIMED)
def test_other_runtimes_have_none_of_the_habits_of_onnxruntime(name: str) -> None:
    target = load_target(name)
    habits = (target.ramps_as_sums, target.means_as_convs, target.sums_stay_float, target.clamps_stay_float)
    assert not any((*habits, target.moves_pairs, target.blocks_fused, target.saturates))
    assert target.transposed_convs
    assert target.signed_from_21


@pytest.mark.parametrize("name", UNTIMED)
def test_where_no_times_are_known_those_of_the_default_rank_nodes(name: str) -> None:
    assert load_costs(name) is load_costs(DEFAULT)


def test_native_is_the_family_at_hand_and_a_recipe_names_that() -> None:
    assert table_name("native") == host.host_family() in FAMILIES
    assert load_target("native") is load_target(host.host_family())
    assert load_recipe("auto").for_target("native").scheme.target == host.host_family()


@pytest.mark.parametrize(
    ("machine", "saturates", "dots", "family"),
    [
        ("x86_64", True, False, "cpu-avx2"),
        ("AMD64", False, False, "cpu-vnni"),
        ("aarch64", False, True, "cpu-arm64"),
        ("arm64", True, True, "cpu-arm64"),  # its own integer products are exact, so nothing is asked
        ("aarch64", False, False, "cpu-armv8"),
    ],
)
def test_the_family_follows_from_machine_and_arithmetic(
    monkeypatch: pytest.MonkeyPatch, machine: str, saturates: bool, dots: bool, family: str
) -> None:
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    monkeypatch.setattr(host, "host_saturates", lambda: saturates)
    monkeypatch.setattr(host, "_has_dot_products", lambda _: dots)
    assert host.host_family.__wrapped__() == family


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("processor: 0\nFeatures\t: fp asimd asimddp\n", True),
        ("processor: 0\nFeatures\t: fp asimd aes crc32\n", False),
        ("processor: 0\n", True),
        (None, True),
    ],
)
def test_dot_products_are_read_from_the_features_of_the_processor(tmp_path: Path, text: str | None, has: bool) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert host._has_dot_products(tmp_path / "cpuinfo") is has


def test_an_unknown_name_is_refused_by_every_reader() -> None:
    for read in (load_target, load_costs, table_name):
        with pytest.raises(RecipeError, match="there is no target named 'cpu-avx'") as error:
            read("cpu-avx")
        assert error.value.hint.startswith("Did you mean")
    assert "native" in target_names()


def test_what_a_file_leaves_out_is_that_of_its_base() -> None:
    base, family = read_target("cpu"), read_target("cpu-vnni")
    assert family["base"] == "cpu"
    assert family["placement"]["description"] != base["placement"]["description"]
    assert family["placement"]["between"] == base["placement"]["between"]


def test_no_code_asks_for_a_target_by_its_name() -> None:
    """What it asks for has a name of its own in `Target`, so that a new family is one file."""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for path, text in texts.items():
        if not any(f'"{name}"' in text for name in stored_targets()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare):
                names = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                assert names.isdisjoint(stored_targets()), f"{path}:{node.lineno}"
