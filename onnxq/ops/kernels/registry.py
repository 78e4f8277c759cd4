"""The registry of float and quantized kernels, found by walking the package.

A module needs no list anywhere else: `@kernel` registers a function, as `@register_plan` and `@register_rewrite` of
`ops.forms.family` do, and `load_families` imports every module of `onnxq.ops`.

Tests: `tests/ops/test_quantized_divergences.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Kernel = Callable[..., Any]
K = TypeVar("K", bound=Callable[..., Any])

_KERNELS: dict[tuple[str, str], list[tuple[int, Kernel]]] = {}


def kernel(op_type: str, *, domain: str = "", since: int = 1) -> Callable[[K], K]:
    """Register a NumPy kernel for an operator.

    The function takes the operator's inputs as positional arguments, `None` for an optional input that is absent. It
    takes the attributes as keywords with the defaults of the specification. It returns one array, or a tuple of arrays
    for operators with several outputs. It never modifies its inputs.

    Args:
        op_type: Name of the operator, such as `QuantizeLinear`.
        domain: Operator set domain; empty for `ai.onnx`.
        since: First version of the operator set for which this function is right. Among several, the newest that is
            not newer than the model's operator set is used.

    """

    def register(function: K) -> K:
        versions = _KERNELS.setdefault((domain, op_type), [])
        versions.append((since, function))
        versions.sort(key=lambda version: version[0])
        return function

    return register


def find_kernel(op_type: str, domain: str, opset: int) -> Kernel | None:
    """Return the kernel for an operator at an opset, or None when there is none."""
    load_families()
    found: Kernel | None = None
    for since, function in _KERNELS.get((domain, op_type), ()):
        if since <= opset:
            found = function
    return found


@cache
def load_families() -> None:
    """Import every module below `onnxq.ops`, so that their decorators run."""
    package = importlib.import_module("onnxq.ops")
    for module in pkgutil.walk_packages(package.__path__, prefix="onnxq.ops."):
        importlib.import_module(module.name)
