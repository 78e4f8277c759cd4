"""Kernel times of single shapes, measured where a model is quantized; kept in a file, they decide the same anywhere.

Tests: `tests/planning/test_benchmark.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxq.errors import DataError
from onnxq.version import __version__

FORMAT = 1
AGAIN = "Measure again with --benchmark."
KEYS = {"operator", "input", "weight", "output", "attributes", "float", "integer"}


@dataclass(frozen=True)
class Kernel:
    """One operator with a constant weight, on one shape.

    Attributes:
        operator: Conv, MatMul or Gemm.
        input: Shape of the activation.
        weight: Shape of the weight.
        output: Shape of the result.
        attributes: Those that the operator has, as JSON with sorted keys.

    """

    operator: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    attributes: str = "{}"


@dataclass(frozen=True)
class Timings:
    """Kernel times of one machine, one thread.

    Attributes:
        onnxruntime: The version that ran them.
        kernels: Nanoseconds in float and in 8 bit.
        scale: What the kernels take by what the table of the target says, the median: it makes times from the table
            comparable with these.

    """

    onnxruntime: str
    kernels: Mapping[Kernel, tuple[int, int]] = field(default_factory=dict)
    scale: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return the timings as plain data for JSON."""
        kernels = [
            {
                "operator": kernel.operator,
                "input": list(kernel.input),
                "weight": list(kernel.weight),
                "output": list(kernel.output),
                "attributes": json.loads(kernel.attributes),
                "float": times[0],
                "integer": times[1],
            }
            for kernel, times in self.kernels.items()
        ]
        return {
            "format": FORMAT,
            "onnxq": __version__,
            "onnxruntime": self.onnxruntime,
            "scale": self.scale,
            "kernels": kernels,
        }


def load_timings(path: str | Path) -> Timings:
    """Read timings from a file.

    Raises:
        DataError: It cannot be read, has no timings, or another version of onnxq wrote it.

    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise DataError(f"timings {path} cannot be read ({error.strerror})", "Check the path.") from error
    except (ValueError, RecursionError) as error:
        reason = "they are no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise DataError(f"timings {path} are no JSON: {reason}", AGAIN) from error
    if not isinstance(found, dict) or "kernels" not in found:
        raise DataError(f"{path} holds no timings", AGAIN)
    if (found.get("format"), found.get("onnxq")) != (FORMAT, __version__):
        wrote = f"onnxq {found.get('onnxq')}, format {found.get('format')}"
        raise DataError(f"timings {path} were written by {wrote}; this is {__version__}, format {FORMAT}", AGAIN)
    try:
        kernels = dict(_kernel(entry) for entry in found["kernels"])
        return Timings(str(found["onnxruntime"]), kernels, _positive(found["scale"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"timings {path} are damaged: {error}", AGAIN) from error


def _kernel(entry: Any) -> tuple[Kernel, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != KEYS or not isinstance(entry["attributes"], dict):
        raise ValueError(f"a kernel has the keys {', '.join(sorted(KEYS))}")
    attributes = json.dumps(entry["attributes"], sort_keys=True)
    kernel = Kernel(
        str(entry["operator"]), _shape(entry["input"]), _shape(entry["weight"]), _shape(entry["output"]), attributes
    )
    return kernel, (_whole(entry["float"]), _whole(entry["integer"]))


def _shape(sizes: Any) -> tuple[int, ...]:
    return tuple(_whole(size) for size in sizes)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no number above 0")
    return float(value)
