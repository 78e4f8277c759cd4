"""Every model of the onnx package, and whole ones, before and after: the same in onnxruntime."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from corpus import Case, cases
from helpers import run, session

from onnxq.data.samples import input_specs
from onnxq.data.synthetic import random_samples
from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator
from onnxq.ir import Model, infer_types, load, parse
from onnxq.ir.opset import make_loadable
from onnxq.ir.pass_manager import Outcome
from onnxq.ir.passes import normalise
from onnxq.runtime.custom_ops import foreign_node
from onnxq.simplify import simplify

ROOT = Path(__file__).parents[2]
MODELS = [*sorted((ROOT / "sample_models").glob("*.onnx")), *sorted((ROOT / "../shared/arena/models").glob("*.onnx"))]
RELATIVE = 1e-5  # to the largest element of an output


def prepared(model: Model) -> Outcome | None:
    """Simplify a model as the pipeline does; None where onnxq refuses it, or nothing is found."""
    try:
        normalise(model)
        infer_types(model)
        make_loadable(model)
    except OnnxqError:
        return None
    if foreign_node(model) is not None:
        return None
    found = simplify(model)
    return None if found.original is None else found


def difference(found: Outcome, feeds: dict[str, np.ndarray]) -> float:
    """The largest difference of any output relative to its largest element, infinite where they do not compare."""
    assert found.original is not None
    before = run(found.original.serialize(), feeds)
    after = run(found.model.serialize(), feeds)
    return max((_difference(one, other) for one, other in zip(before, after, strict=True)), default=0.0)


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    if not isinstance(one, np.ndarray):
        return 0.0
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if one.dtype.kind != "f":
        return 0.0 if np.array_equal(one, other) else np.inf
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return np.inf
    size = float(np.abs(one[finite]).max(initial=0.0))
    off = float(np.abs(one[finite].astype(np.float64) - other[finite]).max(initial=0.0))
    return off / size if size else off


def compared(chosen: list[Case]) -> tuple[list[str], int]:
    """Compare those cases that change: which differ, and how many were compared."""
    broken, count = [], 0
    for case in chosen:
        try:
            proto, feeds = case.make()
            found = prepared(parse(proto.SerializeToString()))
        except OnnxqError:
            continue
        if found is None:
            continue
        try:
            session(found.original.serialize()).run(None, feeds)
        except Exception:  # onnxruntime has no kernel, or refuses what the case feeds
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            off = difference(found, feeds)
        count += 1
        if off > RELATIVE:
            broken.append(f"{case.name}: {off:.1e} after {found.notes}")
    return broken, count


def test_a_sample_of_the_models_of_onnx_computes_the_same():
    small = [case for case in cases() if not case.name.startswith("light")]
    spelled = [case for case in small if "expanded" in case.name]
    chosen = random.Random(1).sample(small, 16) + random.Random(2).sample(spelled, 26)
    broken, count = compared(chosen)
    assert broken == []
    assert count >= 8


@pytest.mark.slow
def test_all_models_of_onnx_compute_the_same():
    broken, count = compared(cases())
    assert broken == []
    assert count > 800


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_whole_models_compute_the_same(path):
    found = prepared(load(path))
    if found is None:
        return
    onnx.checker.check_model(onnx.ModelProto.FromString(found.model.serialize()))
    (feeds,) = random_samples(input_specs(found.model), 1)
    if difference(found, dict(feeds)) > RELATIVE:
        # A variance that is spelled out as the mean of squares less the square of the mean loses digits.
        off = [errors(model, found.original, dict(feeds)) for model in (found.model, found.original)]
        assert all(ours <= max(theirs, 1e-6) for ours, theirs in zip(*off, strict=True)), off


def errors(model: Model, reference: Model, feeds: dict[str, np.ndarray]) -> list[float]:
    """How far a model's outputs in onnxruntime are from those of a reference computed in float64."""
    exact = Evaluator(in_double(onnx.ModelProto.FromString(reference.serialize()))).run(feeds)
    pairs = zip(run(model.serialize(), feeds), exact.values(), strict=True)
    return [float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs]


def in_double(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let everything that is float32 be float64; for models without attributes that are tensors."""
    float32, float64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
    for tensor in proto.graph.initializer:
        if tensor.data_type == float32:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in proto.graph.output:
        if value.type.tensor_type.elem_type == float32:
            value.type.tensor_type.elem_type = float64
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == float32:
                attribute.i = float64
    return proto
