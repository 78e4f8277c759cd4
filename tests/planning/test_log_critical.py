"""Products that a logarithm follows compute in float."""

import numpy as np
import pytest
from helpers import build, floats, node, quantize_in_memory, recipe_of, sqnr, typed

from onnxq.planning.planner import make_plan

LOG = "a logarithm follows, of small values, too"
NODES = [
    node("MatMul", "power mel", "bands"),
    node("Add", "bands least", "bounded"),
    node("Log", "bounded", "decibels"),
    node("MatMul", "decibels w", "y"),
]
MEL = np.maximum(0, 1 - np.abs(np.arange(257)[:, None] / 6.4 - np.arange(40)[None])).astype(np.float32)
WEIGHTS = {"mel": MEL, "least": np.array(1e-6, np.float32), "w": floats(40, 512, scale=0.1)}


@pytest.mark.parametrize("scheme", ["static-int8", "dynamic-int8"])
def test_bands_of_a_spectrum_are_computed_in_float(scheme):
    """Power falls by 60 dB from the lowest frequency to the highest."""
    model = build(NODES, {"power": [100, 257]}, ["y"], WEIGHTS)
    feeds = {"power": floats(100, 257) ** 2 * np.float32(10) ** np.linspace(0, -6, 257, dtype=np.float32)}
    made = quantize_in_memory(model, "auto", [feeds] if scheme == "static-int8" else [])
    assert LOG in made.decision("n_bands").reason
    assert made.decision("n_bands").scheme in (None, "weight-int8")
    assert made.decision("n_y").scheme == scheme
    assert sqnr(made.float_run(feeds)[0], made.run(feeds)[0]) > 30
    asked = quantize_in_memory(model, scheme, [feeds] if scheme == "static-int8" else [])
    assert asked.decision("n_bands").scheme == scheme
    assert sqnr(asked.float_run(feeds)[0], asked.run(feeds)[0]) < 20


def test_the_logarithm_of_probabilities_is_another_thing():
    nodes = [node("MatMul", "x w", "h"), node("Softmax", "h", "p"), node("Log", "p", "y")]
    model = typed(build(nodes, {"x": [64, 256]}, ["y"], {"w": floats(256, 256)}))
    assert make_plan(model, recipe_of("auto"), with_data=False).decisions[0].scheme == "dynamic-int8"


ANGLES = 2 * np.pi * np.arange(256)[:, None] * np.arange(129) / 256
WAVES = {"cos": np.cos(ANGLES).astype(np.float32), "sin": np.sin(ANGLES).astype(np.float32), "mel": MEL[:129]}
SPECTRUM = [
    node("MatMul", "frames cos", "re"),
    node("MatMul", "frames sin", "im"),
    node("Mul", "re re", "re2"),
    node("Mul", "im im", "im2"),
    node("Add", "re2 im2", "total"),
    node("Sqrt", "total", "power"),
    *NODES,
]


def test_so_is_the_spectrum_that_bands_are_made_of():
    """A loud tone beside noise that is 60 dB below it."""
    model = build(SPECTRUM, {"frames": [512, 256]}, ["y"], {**WEIGHTS, **WAVES})
    tone = np.sin(2 * np.pi * np.arange(256) * 20 / 256) * np.hanning(256)
    feeds = {"frames": (tone + floats(512, 256) * 1e-3 * np.hanning(256)).astype(np.float32)}
    made = quantize_in_memory(model, "auto", [feeds])
    for name in ("n_re", "n_im", "n_bands"):
        assert LOG in made.decision(name).reason
    assert made.decision("n_y").scheme == "static-int8"


def test_bands_of_what_is_no_spectrum_leave_that_alone():
    nodes = [node("MatMul", "frames cos", "re"), node("Relu", "re", "power"), *NODES]
    model = typed(build(nodes, {"frames": [512, 256]}, ["y"], {**WEIGHTS, **WAVES}))
    assert make_plan(model, recipe_of("auto"), with_data=False).decisions[0].scheme == "dynamic-int8"
