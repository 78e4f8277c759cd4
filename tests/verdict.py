"""The verdict on one run of `quantize`: a valid model that agrees with the float one, or a clean refusal."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from helpers import ALL, NONE, session

import onnxq
import onnxq.verify
from onnxq.errors import InvalidResult, NothingToQuantize, OnnxqError

# Of 8 bits: a step is 1/255 of a range, so uniform noise lies 10·log10(12·255²/4) ≈ 50 dB below a sine that fills it.
# Normal numbers fill a quarter of their range, four layers add their errors up, and a quarter of a range can cancel.
LEAST_SQNR = 20.0  # dB, of each output whose numbers are floats
LEAST_AGREEMENT = 99.0  # per cent of the elements of an output whose numbers are integers


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True)
class Verdict:
    """How a run ended: `quantized`, `nothing` (no node to quantize) or `refused`, and the figures or the sentence."""

    kind: str
    detail: str
    sqnr: float = np.inf


def judge(
    model: onnx.ModelProto | bytes,
    samples: Sequence[Mapping[str, np.ndarray]] | None,
    *,
    recipe: Any = "auto",
    least_sqnr: float = LEAST_SQNR,
) -> Verdict:
    """Quantize a model in a folder of its own and judge what is there afterwards.

    Args:
        model: The float model.
        samples: Calibration data, which the verdict is measured on too; None for quantizing without data.
        recipe: As for `quantize`.
        least_sqnr: Least SQNR of a float output in dB.

    Raises:
        Broken: An invalid result, another exception than an OnnxqError, something written on refusal, or a model
            that does not load, run, or agree.

    """
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder, quickly():
        source, target = Path(folder) / "m.onnx", Path(folder) / "m.int8.onnx"
        source.write_bytes(data)
        try:
            report = onnxq.quantize(source, recipe, output=target, samples=samples)
        except InvalidResult as error:
            raise Broken(f"invalid result: {error.message}") from error
        except OnnxqError as error:
            left = [path.name for path in Path(folder).iterdir() if path != source]
            if left or source.read_bytes() != data or not error.message or not error.hint:
                raise Broken(f"refused ({error.message!r}, {error.hint!r}), but left {left}") from error
            return Verdict("nothing" if isinstance(error, NothingToQuantize) else "refused", error.message)
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        check_file(source, target)
        assert report.comparison is not None
        reached = check_figures(report.comparison, least_sqnr)
    return Verdict("quantized", str(report.counts()), reached)


def quickly() -> Any:
    """Time no pairs of runs: latency is not what is judged here."""
    return patch.multiple(onnxq.verify, WARM_UPS=1, LEAST_PAIRS=1, MOST_PAIRS=1)


def check_file(source: Path, target: Path) -> None:
    """The result is as well formed as its source, loads at both ends of the optimisation, and weighs no more."""
    problem = onnxq.verify.check_wellformed(target)
    if problem and not onnxq.verify.check_wellformed(source):
        raise Broken(f"the checker objects: {problem}")
    for level in (NONE, ALL):
        try:
            session(target.read_bytes(), level)
        except Exception as error:
            raise Broken(f"does not load: {error}") from error


def check_figures(comparison: Any, least_sqnr: float) -> float:
    """Every float output reaches the SQNR, every other one the agreement. Gives the least SQNR."""
    for output in comparison.outputs:
        if output.equal:
            continue
        if np.dtype(output.dtype).kind in "iub":
            if (output.agreement or 0) < LEAST_AGREEMENT:
                raise Broken(f"output '{output.name}' of integers agrees in {output.agreement} %")
        elif output.sqnr < least_sqnr:
            raise Broken(f"output '{output.name}' has {output.sqnr:.1f} dB, off by up to {output.max_abs:.3g}")
    return min((output.sqnr for output in comparison.outputs if output.dtype.startswith("float")), default=np.inf)
