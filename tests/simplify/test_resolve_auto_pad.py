"""Padding that a runtime works out from sizes: where it is stated, and where it stays open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import ALL, build, changed_alike, floats, node, run, typed
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxq.ir import Model
from onnxq.simplify import simplify


def stated(model: Model) -> int:
    """State the padding in place; give how many nodes say it now."""
    found = simplify(model, ["resolve_auto_pad"])
    model.graph = found.model.graph
    return sum("pads" in step.spans and "auto_pad" not in step.spans for step in model.graph.nodes)


def window(kind: str, size: list[Any], **attributes: Any) -> Any:
    reads, weights = ("x w", {"w": floats(4, 2, 3, 2)}) if kind == "Conv" else ("x", {})
    return build([node(kind, reads, "y", **attributes)], {"x": [1, 2, *size]}, ["y"], weights, 13)


@pytest.mark.parametrize("kind", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_it_is_stated_where_sizes_are_known(kind: str, mode: str) -> None:
    proto = window(kind, [9, 8], auto_pad=mode, kernel_shape=[3, 2])
    _, count = changed_alike(proto, stated, {"x": floats(1, 2, 9, 8)}, [ALL])
    assert count == 1


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        (["height", 8], {"auto_pad": "SAME_UPPER"}),
        ([9, 8], {"auto_pad": "VALID"}),
        ([9, 8], {"pads": [1, 1, 1, 1]}),
    ],
)
def test_others_stay(size: list[Any], attributes: dict[str, Any]) -> None:
    found = simplify(typed(window("Conv", size, **attributes)), ["resolve_auto_pad"])
    assert found.notes == ()


@pytest.mark.parametrize(
    "attributes", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"ceil_mode": 1, "strides": [4, 4]}]
)
def test_pads_that_onnxruntime_refuses_are_not_stated(attributes: dict[str, Any]) -> None:
    """Those of a dilated pool can be as large as its kernel."""
    proto = window("MaxPool", [9, 9], kernel_shape=[2, 2], dilations=[3, 3], **attributes)
    _, count = changed_alike(proto, stated, {"x": floats(1, 2, 9, 9)}, [ALL])
    assert count == 0


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["Conv", "MaxPool", "AveragePool"]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    upper=st.booleans(),
)
def test_it_is_what_onnxruntime_works_out(
    kind: str, size: tuple[int, int], strides: tuple[int, int], upper: bool
) -> None:
    mode = "SAME_UPPER" if upper else "SAME_LOWER"
    proto = window(kind, [*size], auto_pad=mode, kernel_shape=[3, 2], strides=[*strides])
    changed_alike(proto, stated, {"x": floats(1, 2, *size)}, [ALL])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["MaxPool", "AveragePool"]),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padded=st.booleans(),
)
def test_windows_that_are_rounded_up(
    kind: str, size: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int], padded: bool
) -> None:
    pads = [side - 1 if padded else 0 for side in kernel * 2]
    proto = window(kind, [*size], kernel_shape=[*kernel], strides=[*strides], pads=pads, ceil_mode=1)
    model, feeds = typed(proto), {"x": floats(1, 2, *size)}
    assert stated(model) == 1
    assert "ceil_mode" not in model.graph.nodes[0].spans
    expected = run(proto.SerializeToString(), feeds)[0]
    np.testing.assert_allclose(run(model.serialize(), feeds)[0], expected, rtol=1e-5, atol=1e-6, strict=True)


def test_onnxruntime_loads_what_has_known_sizes_behind_such_a_pool() -> None:
    """Its inference counts 4 windows of 5 places and a padded one on either side; there are 3."""
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1}
    steps = [
        node("Shape", "x", "s"),
        node("Slice", "s two four", "ends"),
        node("Slice", "x from ends axes", "c"),
        node("MaxPool", "c", "p", **attributes),
        node("Flatten", "p", "f"),
        node("MatMul", "f w", "y"),
    ]
    weights = {"two": np.array([2]), "four": np.array([4]), "from": np.array([0, 0]), "axes": np.array([2, 3])}
    proto = build(steps, {"x": [1, 2, 5, 5]}, ["y"], {**weights, "w": floats(18, 4)}, 13)
    before = run(proto.SerializeToString(), {"x": floats(1, 2, 5, 5)})
    found = simplify(typed(proto))
    assert found.notes
    np.testing.assert_allclose(run(found.model.serialize(), {"x": floats(1, 2, 5, 5)})[0], before[0], rtol=1e-5)
