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
from helpers import ALL, NONE, recipe_of, session

import onnxq
import onnxq.verification.compare
from onnxq.errors import InvalidResult, NothingToQuantize, OnnxqError
from onnxq.ir import load
from onnxq.runtime.custom_ops import foreign_node
from onnxq.verification.error_stats import arrays

# 8 bits over the range of normal numbers make noise of about 40 dB, 36 with integer weights besides; a few layers in a
# row, and values that all but cancel, take up to 20 more.
LEAST_SQNR = 16.0  # dB, of each output of finite floats
SETTINGS: dict[str, tuple[Any, bool]] = {  # name → recipe, and whether it gets calibration data
    "auto": ("auto", False),
    "auto, data": ("auto", True),
    "static": ("static-int8", True),
    "static, one scale": (recipe_of("static-int8", granularity="tensor", form="qdq", ranges="mse"), True),
    "static, int8, com.microsoft": (recipe_of("static-int8", activations="int8", domain="com.microsoft"), True),
    "static, uint16": (recipe_of("static-int8", activations="uint16"), True),
    "dynamic, ConvInteger": (recipe_of("dynamic-int8", integer_conv=True), False),
    "weights": ("weight-int8", False),
    "auto, reduced range": (recipe_of("auto", reduce_range=True), True),
    "weights in 4 bit": ("weight-int4", False),
    "weights in 4 bit, data": (recipe_of("weight-int4", block_size=16), True),
    "weights, DequantizeLinear, data": (recipe_of("weight-int8", form="qdq"), True),
}
FINER = {
    "weights in 4 bit": "weights",
    "weights in 4 bit, data": "weights, DequantizeLinear, data",
}  # the same in 8 bit
COARSENESS = 28.0  # dB that 4 bits may lose against 8: steps 127/7 as wide are 25, and chance adds to it


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True)
class Verdict:
    """How a run ended: `quantized`, `nothing` (no node to quantize) or `refused`; counts of nodes, or the sentence."""

    kind: str
    detail: str
    sqnr: float = np.inf


def judge(
    model: onnx.ModelProto | bytes,
    samples: Sequence[Mapping[str, np.ndarray]],
    *,
    recipe: Any = "auto",
    with_data: bool = True,
    least_sqnr: float | None = LEAST_SQNR,
    exact: bool = False,
    fast: bool = False,
) -> Verdict:
    """Quantize a model in a folder of its own and judge what is there afterwards.

    Args:
        model: The float model.
        samples: What it is judged on; calibration data as well `with_data`.
        recipe: As for `quantize`.
        with_data: Whether `quantize` gets the samples.
        least_sqnr: Least SQNR in dB of each float output, where the float model gives finite numbers; None for none.
        exact: Whether outputs of integers, booleans and strings must be equal: nothing quantized stands before them.
        fast: As for `quantize`.

    Raises:
        Broken: An invalid result, another exception than an OnnxqError, something written on refusal, or a model
            that does not load, run, or agree.

    """
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder, quickly():
        source, target = Path(folder) / "m.onnx", Path(folder) / "m.int8.onnx"
        source.write_bytes(data)
        try:
            given = list(samples) if with_data else None
            report = onnxq.quantize(source, recipe, output=target, samples=given, fast=fast)
        except InvalidResult as error:
            raise Broken(f"invalid result: {error.message}") from error
        except OnnxqError as error:
            left = [path.name for path in Path(folder).iterdir() if path != source]
            if left or source.read_bytes() != data or not error.message or not error.hint:
                raise Broken(f"refused ({error.message!r}, {error.hint!r}), but left {left}") from error
            return Verdict("nothing" if isinstance(error, NothingToQuantize) else "refused", error.message)
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        _check_file(source, target)
        return Verdict("quantized", str(report.counts()), _check_figures(source, target, samples, least_sqnr, exact))


def quickly() -> Any:
    """Time no pairs of runs: latency is not what is judged here."""
    return patch.multiple(onnxq.verification.compare, WARM_UPS=1, LEAST_PAIRS=1, MOST_PAIRS=1)


def _check_file(source: Path, target: Path) -> None:
    """The result is as well formed as its source, and loads at both ends of the optimisation.

    A model with an operator that onnxruntime has not is quantized without being run: there, the source loads as little.
    """
    problem = onnxq.verification.compare.check_wellformed(target)
    if problem and not onnxq.verification.compare.check_wellformed(source):
        raise Broken(f"the checker objects: {problem}")
    for level in (NONE, ALL):
        try:
            session(target.read_bytes(), level)
        except Exception as error:
            if foreign_node(load(target)) is None or _loads(source, level):
                raise Broken(f"does not load: {error}") from error


def _loads(path: Path, level: Any) -> bool:
    try:
        session(path.read_bytes(), level)
    except Exception:
        return False
    return True


def _check_figures(
    source: Path, target: Path, samples: Sequence[Mapping[str, np.ndarray]], least: float | None, exact: bool
) -> float:
    """Every output of finite floats reaches the SQNR. Gives the least of them."""
    finite = _finite_outputs(source, samples) if samples else None
    if finite is None:  # the float model does not run on these samples, or there are none
        return np.inf
    try:
        comparison = onnxq.verification.compare.compare(source, target, samples, latency=False)
    except OnnxqError as error:
        raise Broken(f"does not run: {error.message}") from error
    reached = [np.inf]
    for output in comparison.outputs:
        if output.dtype.startswith(("float", "bfloat")):
            if output.name not in finite or least is None:
                continue
            reached.append(output.sqnr)
            if output.sqnr < least:
                raise Broken(f"output '{output.name}' has {output.sqnr:.1f} dB, off by up to {output.max_abs:.3g}")
        elif exact and not output.equal:
            raise Broken(f"output '{output.name}' of {output.dtype} differs")
    return min(reached)


def _finite_outputs(source: Path, samples: Sequence[Mapping[str, np.ndarray]]) -> set[str] | None:
    try:
        loaded = session(source.read_bytes(), ALL)
        names = [output.name for output in loaded.get_outputs()]
        finite = set(names)
        for feeds in samples:
            for name, value in zip(names, loaded.run(None, dict(feeds)), strict=True):
                if not all(np.isfinite(array).all() for array in arrays(value) if array.dtype.kind == "f"):
                    finite.discard(name)
    except Exception:
        return None
    return finite
