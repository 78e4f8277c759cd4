"""Real models, float and quantized: every node the same in both engines, and whole runs too, but for codes that tip."""

from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq.evaluator import Evaluator, arithmetic
from onnxq.ir import infer_types, load
from onnxq.stages.files import open_data
from onnxq.verification.engines import check_engines
from onnxq.verification.engines.tensors import InnerTensors

ARENA = Path(__file__).parents[2] / ".." / "shared" / "arena"
MODELS = {
    "digits": "digits_mbv2",
    "face": "ultraface_rfb320",
    "superres": "super_resolution",
    "magika": "magika_v3_3",
    "chargpt": "chargpt",
    "minilm": "minilm",
}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ARENA.exists(), reason="the models are not here")]


def samples(task: str, count: int) -> list[dict[str, np.ndarray]]:
    model = load(ARENA / "models" / f"{MODELS[task]}.onnx")
    infer_types(model)
    given = open_data(model, [str(ARENA / "data" / f"{task}_calib.npz")], None, count)
    assert given is not None
    return [dict(sample) for sample in given]


@pytest.mark.parametrize("recipe", ["float", "without data", "static-int8", "auto"])
@pytest.mark.parametrize("task", MODELS)
def test_every_node_agrees(task: str, recipe: str, tmp_path: Path) -> None:
    path = ARENA / "models" / f"{MODELS[task]}.onnx"
    if recipe != "float":
        target = tmp_path / "q.onnx"
        if recipe == "without data":
            onnxq.quantize(path, output=target)
        else:
            onnxq.quantize(path, recipe, data=[ARENA / "data" / f"{task}_calib.npz"], output=target)
        path = target
    found = check_engines(path, samples(task, 2))
    assert (found.culprits, found.ties, found.notes, found.objection) == ((), 0, (), "")
    if found.flipped == 0:
        assert max(output.relative for output in found.outputs) <= 1e-4
        return
    assert recipe != "float"
    check_first_code(path, samples(task, 1)[0])


def check_first_code(path: Path, feeds: dict[str, np.ndarray]) -> None:
    """Where codes differ first, they differ by one, and what they are made of differs in the last bits, half-way."""
    evaluator = Evaluator(path)
    tensors = InnerTensors(evaluator, feeds)
    theirs = dict[object, np.ndarray]()
    with arithmetic():
        run = evaluator.begin(feeds)
        run.keep = set(evaluator.model.graph.values.values())
        for index, step in enumerate(evaluator.steps):
            theirs.update(tensors.of(index))
            run.compute(step)
            if step.node.op_type not in ("QuantizeLinear", "DynamicQuantizeLinear"):
                continue
            codes, source = step.node.outputs[0], step.node.inputs[0]
            scale = step.node.outputs[1] if step.node.op_type.startswith("Dynamic") else step.node.inputs[1]
            assert codes is not None
            assert source is not None
            assert scale is not None
            differs = theirs[codes] != run.values[codes]
            if not differs.any():
                continue
            assert np.abs(theirs[codes].astype(int) - run.values[codes])[differs].max() == 1
            numbers, ours = theirs.get(source, run.values[source]).astype(np.float64), run.values[source]
            assert np.abs(numbers - ours).max() <= 1e-5 * np.abs(numbers).max()
            steps = (numbers / run.values[scale])[differs]
            apart = (np.abs(numbers - ours) / run.values[scale])[differs]
            assert (np.abs(steps - np.floor(steps) - 0.5) <= apart + 1e-5).all()  # 1e-5: the scale's own last bits
            return
