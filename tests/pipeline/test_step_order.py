"""The chain of steps in the docstring of the pipeline is the order in which the code takes them."""

import ast
import re
from pathlib import Path

import pytest

from onnxq.pipeline import in_memory, quantize, settling
from onnxq.search import variants
from onnxq.search.trials import float_transforms
from onnxq.stages import prepare as preparation

SAMPLES = Path(__file__).parents[2] / "sample_models"
PLACES = {
    "load": (quantize, "read_model"),
    "normalise": (preparation, "normalise"),
    "simplify": (preparation, "simplify"),
    "plan": (preparation, "replan_with_costs"),
    "limit masks": (float_transforms, "limit_attention_masks"),
    "store": (float_transforms, "stored_where_little_is_saved"),
    "equalize": (float_transforms, "equalize_if_it_helps"),
    "rescale": (float_transforms, "rescale"),
    "calibrate": (variants, "measure"),
    "round": (variants, "Weights"),
    "search": (settling, "meet_accuracy"),
    "cross-validate": (settling, "cross_validate"),
    "correct biases": (settling, "correct_biases"),
    "rewrite": (settling, "rewrite"),
    "optimize": (in_memory, "finalize"),
    "verify": (in_memory, "compare"),
    "save": (quantize, "save"),
    "report": (quantize, "with_hazards"),
}


def test_the_steps_are_taken_in_the_order_of_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for step, (module, name) in PLACES.items():
        monkeypatch.setattr(module, name, noting(taken, step, getattr(module, name)))
    data = SAMPLES / "digits_calibration.npz"
    quantize.quantize(SAMPLES / "digits_cnn.onnx", data=data, sample_limit=8, output=tmp_path / "q.onnx")
    first = list(dict.fromkeys(taken))
    chain = re.search(
        r"load → [\w→ \n-]+report", ast.get_docstring(ast.parse(Path(quantize.__file__).read_text())) or ""
    )
    assert chain
    assert first == [step.strip() for step in " ".join(chain[0].split()).split("→")]


def noting(taken: list[str], step: str, call):
    def noted(*given, **options):
        taken.append(step)
        return call(*given, **options)

    return noted
