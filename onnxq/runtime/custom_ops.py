"""Operators that onnxruntime does not bring along: shared libraries that add them, and models that use them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

from onnxq.errors import ModelError
from onnxq.ir import Model, Node
from onnxq.runtime.ort_session import LIBRARIES, NEEDS_LIBRARY, NO_OPERATOR, ORT_ERRORS, reason

GIVE_LIBRARY = "Give the library of its custom operators with --custom-ops, or leave out the data for a dynamic model."


def register_custom_ops(library: str | Path) -> None:
    """Let every session of this process know the operators of a shared library.

    Args:
        library: What `SessionOptions.register_custom_ops_library` takes: it exports `RegisterCustomOps`.

    Raises:
        ModelError: There is no such file, or onnxruntime cannot load it.

    Examples:
        >>> import onnxq
        >>> onnxq.register_custom_ops("libcustom.so")
        Traceback (most recent call last):
        onnxq.errors.ModelError: the library of custom operators libcustom.so does not exist
        hint: Check the path.

    """
    path = Path(library).resolve()
    if path.is_dir():
        raise ModelError(f"{library} is a folder", "Give the library of custom operators in it.")
    if not path.is_file():
        raise ModelError(f"the library of custom operators {library} does not exist", "Check the path.")
    if str(path) in LIBRARIES:
        return
    try:
        ort.SessionOptions().register_custom_ops_library(str(path))
    except ORT_ERRORS as error:
        raise ModelError(
            f"{library} is no library of custom operators that onnxruntime can load: {reason(error)}",
            "It has to be built for this system and to export RegisterCustomOps.",
        ) from error
    LIBRARIES.append(str(path))


def foreign_node(model: Model) -> Node | None:
    """Return the first node of another domain whose operator no onnxruntime session here would know."""
    if LIBRARIES:  # what they hold, onnxruntime only tells when it loads a model
        return None
    return next((n for n in model.graph.walk() if n.domain and (n.domain, n.op_type) not in _known()), None)


def lacking_operator(model: Model) -> str | None:
    """Name an operator of a model that onnxruntime does not know; None where it knows all."""
    foreign = foreign_node(model)
    if foreign is None:
        return None
    return f"operator {foreign.op_type} of domain {foreign.domain} (node {foreign.label})"


def check_runs(model: Model) -> None:
    """Refuse to run a model on data that has a node which onnxruntime does not know.

    Raises:
        ModelError: It has one, which the sentence names.

    """
    if (lacking := lacking_operator(model)) is not None:
        raise ModelError(f"onnxruntime cannot run {model.name} on the data: it has no {lacking}", GIVE_LIBRARY)


def refusal_hint(error: Exception) -> str:
    """Say what to do where onnxruntime refuses a quantized model."""
    if NO_OPERATOR in str(error):
        return NEEDS_LIBRARY
    return "Other versions of onnxruntime may know its operators; if onnxq made it, report it."


@cache
def _known() -> frozenset[tuple[str, str]]:
    return frozenset((schema.domain, schema.name) for schema in native.get_all_operator_schema())
