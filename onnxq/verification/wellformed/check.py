"""Every check, on every node of a model, bodies included.

Tests: `tests/verification/test_wellformed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxq.errors import ModelError
from onnxq.ir import Model, Node, StoredTensor, infer_types
from onnxq.ir.passes import normalise
from onnxq.verification.wellformed.defect import Defect
from onnxq.verification.wellformed.pairs import check_pairs
from onnxq.verification.wellformed.parameters import check_parameters
from onnxq.verification.wellformed.versions import check_imports, check_version


def find_defects(model: Model) -> list[Defect]:
    """Find what is wrong with the quantized parts of a model.

    Checks scales (positive, finite), zero points (type of the codes, shape of the scale), and axis and block size
    against the shapes. Checks QuantizeLinear and DequantizeLinear as pairs, the operator sets that Q/DQ features need,
    and imports of every domain. External data have to be there and long enough. Nodes in the bodies of If, Loop and
    Scan and in model-local functions are checked, and the operators of com.microsoft. Only scales and zero points are
    read: the time does not depend on the size of the weights.

    Args:
        model: The model as it was loaded; the types and shapes of its values are inferred.

    Returns:
        Errors and warnings, each sentence once, in graph order; empty where all is well.

    """
    found = list(check_imports(model))
    whole = model
    if model.has_functions:
        whole = model.copy()
        try:
            normalise(whole, needs=("inline_functions",))
        except ModelError as error:
            found.append(Defect("", "", error.message))
            whole = model
    contradiction = _infer(whole)
    missing = list(_check_storage(whole))
    found += missing
    absent = {defect.tensor for defect in missing}
    for node in whole.graph.walk():
        if not absent.intersection(value.name for value in node.reads):
            found += _check_node(node, whole)
    if contradiction and not any(defect.is_error for defect in found):
        found.append(Defect("", "", contradiction))
    return list({defect.sentence: defect for defect in found}.values())


def _check_node(node: Node, model: Model) -> Iterator[Defect]:
    yield from check_version(node, model.opset)
    yield from check_parameters(node)
    yield from check_pairs(node, model)


def _infer(model: Model) -> str:
    """Infer types as far as they go; give the sentence that says why they contradict each other, or nothing."""
    try:
        infer_types(model)
    except ModelError as error:
        return error.message
    return ""


def _check_storage(model: Model) -> Iterator[Defect]:
    """Find initializers whose external data is not there, or too short; nothing of it is read."""
    for value in model.initializers():
        if isinstance(value.tensor, StoredTensor) and value.tensor.is_external:
            try:
                value.tensor.raw()
            except ModelError as error:
                yield Defect("", value.name, error.message)
