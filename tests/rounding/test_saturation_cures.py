"""What the report says about saturation, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from helpers import build, floats, node, recipe_of

from onnxq import quantize
from onnxq.explanation.explain import explain
from onnxq.report import Report
from onnxq.rounding.saturation_cures import SaturationCure, merged, pair_cure


def chain(tmp_path: Path) -> Path:
    """Two products; the second has weights so even that none of their pairs leaves 16 bits."""
    even = np.tile(np.array([[0.5], [-0.5]], np.float32), (16, 8))
    proto = build(
        [node("MatMul", "x a", "h"), node("MatMul", "h b", "y")],
        {"x": [16, 64]},
        ["y"],
        {"a": np.abs(floats(64, 32, seed=7)), "b": even},
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def quantized(source: Path, *, reduce_range: bool = False, target: str = "cpu") -> Report:
    data = [{"x": np.abs(floats(16, 64, seed=seed))} for seed in range(4)]
    recipe = recipe_of("static-int8", target=target)
    output = source.with_name("q.onnx")
    return quantize(source, recipe, output=output, samples=data, reduce_range=reduce_range, force=True)


def test_each_layer_has_its_cure_and_the_reason(tmp_path: Path) -> None:
    source = chain(tmp_path)
    report = quantized(source)
    first, second = report.saturation
    assert (first.node, first.cure, second.node, second.cure) == ("n_h", "pair limits", "n_y", "none needed")
    assert first.pairs
    assert first.because.endswith("could leave 16 bits at the largest codes of the samples plus a fifth")
    assert json.loads(report.to_json())["saturation"][0]["cure"] == "pair limits"
    assert "| `n_h` | pair limits |" in report.to_markdown()


def test_seven_bits_are_a_cure_and_a_target_with_exact_products_needs_none(tmp_path: Path) -> None:
    source = chain(tmp_path)
    assert {cure.cure for cure in quantized(source, reduce_range=True).saturation} == {"7 bits"}
    assert quantized(source, target="cpu-vnni").saturation == ()


def test_explain_says_it_of_one_node(tmp_path: Path) -> None:
    source, data = chain(tmp_path), tmp_path / "d.npz"
    np.savez(data, x=np.abs(floats(4, 64, 64, seed=1))[:, :16])
    (found,) = explain(source, "n_h", recipe_of("static-int8"), data=[data])
    assert found.saturation is not None
    assert found.as_dict()["saturation"]["cure"] == "pair limits"


def test_a_node_with_two_weights_has_one_cure() -> None:
    cures = [pair_cure("l", 3, measured=False), pair_cure("l", 5, measured=False), pair_cure("m", 0, measured=True)]
    assert merged(cures) == (
        SaturationCure(
            "l", "pair limits", 5, "5 pairs of weights could leave 16 bits at codes of 255, as no samples show less"
        ),
        cures[2],
    )
