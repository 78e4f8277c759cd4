"""Stored weights get 12 bits where outputs are far from float, and bytes are left."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from helpers import build, floats, node

from onnxq import quantize
from onnxq.report import Report
from onnxq.search.wide_weights import ENOUGH_LEFT, GOAL, LARGER_FILES, LARGEST_FILE, _worth_most
from onnxq.verification.compare import compare


def steep_network(folder: Path, width: int = 96, scale: float = 0.35) -> Path:
    """Small products between steep functions, which enlarge every error: too few elements for integer kernels."""
    sizes = [96, *[width] * 5, 64]
    nodes, weights, read = [], {}, "x"
    for index, (inner, outer) in enumerate(pairwise(sizes)):
        weights[f"w{index}"] = floats(inner, outer, seed=index, scale=scale)
        nodes.append(node("MatMul", f"{read} w{index}", "y" if index == 5 else f"m{index}"))
        nodes += [node("Tanh", f"m{index}", f"t{index}")] if index < 5 else []
        read = f"t{index}"
    onnx.save(build(nodes, {"x": ["N", 96]}, ["y"], weights), folder / "m.onnx")
    return folder / "m.onnx"


def some(count: int, first: int) -> list[dict[str, np.ndarray]]:
    return [{"x": floats(1, 96, seed=first + place)} for place in range(count)]


def schemes(report: Report) -> list[str | None]:
    return [decision.scheme for decision in report.nodes if decision.op_type == "MatMul"]


def test_outputs_far_from_float_get_wider_weights(tmp_path: Path) -> None:
    source = steep_network(tmp_path)
    found: dict[str, tuple[float, float]] = {}
    (tmp_path / "narrow.toml").write_text('scheme = "weight-int8"\n')
    for recipe in ("auto", str(tmp_path / "narrow.toml")):
        report = quantize(source, recipe, output=tmp_path / "q.onnx", samples=some(8, 100), force=True)
        others = compare(source, tmp_path / "q.onnx", some(16, 900), latency=False).worst_sqnr
        found[recipe] = others, (tmp_path / "q.onnx").stat().st_size / source.stat().st_size
        if recipe == "auto":
            assert "weight-int12" in schemes(report)
            assert {*schemes(report)} <= {"weight-int12", "weight-int8"}
    (wide, size), (narrow, _) = found.values()
    assert narrow < 30
    assert wide > narrow + 3
    assert size < 0.4


def test_codes_are_judged_by_what_they_lose_on_others(tmp_path: Path) -> None:
    """Four rows show 33 dB of the codes that were chosen on them, and others have 26."""
    source = steep_network(tmp_path, scale=0.28)
    report = quantize(source, output=tmp_path / "q.onnx", samples=some(4, 100))
    assert "weight-int12" in schemes(report)
    assert compare(source, tmp_path / "q.onnx", some(16, 900), latency=False).worst_sqnr > 31


def test_a_file_may_grow_where_it_is_of_little_use(tmp_path: Path) -> None:
    """With 44 columns each, nodes and names take the bytes that more bits would: with 8 bits it is of no use."""
    source = steep_network(tmp_path, width=44, scale=1.2)
    (tmp_path / "narrow.toml").write_text('scheme = "weight-int8"\n')
    found = {}
    for recipe in ("auto", str(tmp_path / "narrow.toml")):
        quantize(source, recipe, output=tmp_path / "q.onnx", samples=some(8, 100), force=True)
        others = compare(source, tmp_path / "q.onnx", some(16, 900), latency=False).worst_sqnr
        found[recipe] = others, (tmp_path / "q.onnx").stat().st_size / source.stat().st_size
    (wide, size), (narrow, _) = found.values()
    assert narrow < 20 < wide
    assert LARGEST_FILE < size < LARGER_FILES[-1]


def test_weights_stay_in_8_bits_where_outputs_are_near_to_float(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Tanh", "m", "y")]
    onnx.save(build(nodes, {"x": ["N", 64]}, ["y"], {"w": floats(64, 64, scale=0.1)}), tmp_path / "m.onnx")
    samples = [{"x": floats(1, 64, seed=seed)} for seed in range(8)]
    report = quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", samples=samples)
    assert schemes(report) == ["weight-int8"]


def test_nodes_are_taken_by_error_for_bytes_until_little_is_left() -> None:
    noises = {"a": 1e-3, "b": 8e-4, "c": 1e-7}
    assert _worth_most(noises, {"a": 1000.0, "b": 100.0, "c": 100.0}, 2000.0) == {"a", "b"}
    assert _worth_most(noises, {"a": 1000.0, "b": 100.0, "c": 100.0}, 1000.0) == {"b", "c"}
    assert _worth_most({"a": ENOUGH_LEFT / 2}, {"a": 1.0}, 10.0) == set()
    assert _worth_most(noises, dict.fromkeys(noises, 10.0), 1e6, enough=None) == {"a", "b", "c"}
    assert GOAL > 30
