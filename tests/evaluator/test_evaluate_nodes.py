"""The node suite that the onnx package generates, 1,884 models of one operator each, on our evaluator."""

from typing import Any

import numpy as np
import onnx
import pytest
from node_cases import node_cases
from onnx import numpy_helper

from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator

# docs/reference/evaluator.md: images need Pillow, random numbers differ, one case contradicts itself.
KNOWN = ("test_image_decoder_", "test_bernoulli", "test_if_opt")


def plain(value: Any) -> Any:
    """An array, or a list of arrays, of whatever protobuf form the suite has."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def agree(got: Any, expected: Any, case: Any) -> bool:
    """Same type and shape, and numbers within the tolerance that the case states."""
    if expected is None or isinstance(expected, (list, tuple)):
        if not isinstance(got, type(expected)) or len(got or ()) != len(expected or ()):
            return got is None and expected is None
        return all(agree(g, e, case) for g, e in zip(got or (), expected or (), strict=True))
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        return False
    if expected.dtype.kind in "OUS":
        return bool(np.array_equal(got.astype(str), expected.astype(str)))
    if got.dtype != expected.dtype:
        return False
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    return bool(np.allclose(got.astype(wide), expected.astype(wide), rtol=case.rtol, atol=case.atol, equal_nan=True))


def passes(case: Any) -> bool:
    try:
        evaluator = Evaluator(case.model)
        for inputs, outputs in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            feeds = {name: plain(value) for name, value in zip(names, inputs, strict=True)}
            found = evaluator.run(feeds).values()
            if not all(agree(g, plain(e), case) for g, e in zip(found, outputs, strict=True)):
                return False
    except OnnxqError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")  # onnx.reference warns about itself
def test_every_case_that_can_pass_does() -> None:
    cases = node_cases()
    failed = [case.name for case in cases if not passes(case)]
    assert len(cases) > 1000
    assert [name for name in failed if not name.startswith(KNOWN)] == []
    assert len(failed) <= 16
