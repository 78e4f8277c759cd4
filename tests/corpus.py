"""Every model that the onnx package can give, and harder ones made of them, for `quantize` to cope with.

Run as a script, `python tests/corpus.py START STOP` judges those cases and prints a line before and after each, so that
whoever started it knows which one took the process down.
"""

from __future__ import annotations

import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from evaluator.test_evaluate_nodes import plain
from helpers import F
from mass import main
from node_cases import node_cases
from onnx import helper, numpy_helper
from verdict import COARSENESS, FINER, LEAST_SQNR, SETTINGS, Broken, Verdict, judge

from onnxq.ops.kernels.registry import load_families

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data"
NEWEST = 26  # what onnxruntime loads; most cases are stamped newer without using anything new
ALIKE = 3  # so many models of the same operators are quantized in every way there is, the others in three
# Jumps, poles and borders of a domain: where the input changes by a step of 8 bits, the output changes by any amount.
ABRUPT = frozenset(
    {"Acos", "Acosh", "Asin", "Atanh", "Log", "Sqrt", "Pow", "Reciprocal", "Div", "Tan", "Mod", "BatchNormalization"}
    | {"Ceil", "Floor", "Round", "Sign", "Hardmax", "ThresholdedRelu", "GridSample", "TopK", "Unique", "RoiAlign"}
    | {
        "TreeEnsemble",
        "NonMaxSuppression",
        "MaxRoiPool",
        "Gradient",
        "Equal",
        "Softmax",
        "Compress",
        "BitCast",
        "DeformConv",
    }
)


@dataclass(frozen=True)
class Case:
    """A model with inputs.

    Attributes:
        name: Of the case in the suite, and what was made of it.
        make: Gives the model and the inputs.
        abrupt: Whether no bound on its floats makes sense.
        exact: Whether its integers must stay equal.
        settings: Names of those among `SETTINGS` that it is quantized by.

    """

    name: str
    make: Callable[[], tuple[onnx.ModelProto, dict[str, Any]]]
    abrupt: bool = False
    exact: bool = True
    settings: tuple[str, ...] = tuple(SETTINGS)

    def judge(self, setting: str) -> Verdict:
        """Quantize it by one of `SETTINGS`, tiny weights too.

        Where 4 bits miss the bound, because the model tells small differences of large numbers, they are held to what
        8 bits reach.
        """
        least = None if self.abrupt else LEAST_SQNR
        try:
            return self._judge(setting, least)
        except Broken:
            if least is None or setting not in FINER:
                raise
            fine = self._judge(FINER[setting], least)
            return self._judge(setting, min(least, fine.sqnr - COARSENESS))

    def _judge(self, setting: str, least: float | None) -> Verdict:
        recipe, with_data = SETTINGS[setting]
        model, feeds = self.make()
        with tiny_weights_count(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of the infinities that some cases hold
            return judge(model, [feeds, feeds], recipe=recipe, with_data=with_data, least_sqnr=least, exact=self.exact)


@contextmanager
def tiny_weights_count() -> Iterator[None]:
    """Let weights of a few elements be worth storing in 8 bit."""
    load_families()
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("onnxq")]
    with ExitStack() as stack:
        for module in modules:
            if hasattr(module, "MINIMUM_STORED_ELEMENTS"):
                stack.enter_context(patch.object(module, "MINIMUM_STORED_ELEMENTS", 1))
        yield


@cache
def cases() -> list[Case]:
    """All of them, in an order that does not change."""
    return [*_node_cases(), *_folder_cases(), *_light_cases()]


def _node_cases() -> Iterator[Case]:
    seen = Counter[str]()
    for case in node_cases():
        inputs = case.model.graph.input
        yield Case(case.name, lambda case=case: (case.model, _feeds(case)), settings=("auto", "auto, data"))
        arrays = [v.name for v, given in zip(inputs, case.data_sets[0][0], strict=True) if _constant(given)]
        for kept in dict.fromkeys([inputs[0].name, inputs[-1].name] if len(inputs) > 1 else []):
            if constants := [name for name in arrays if name != kept]:
                name = f"{case.name}, all but '{kept}' constant"
                made = partial(_with_constants, case, constants)
                yield Case(name, made, exact=False, settings=("auto", "static", "weights, DequantizeLinear, data"))
        if any(_has_channels(plain(given)) for given in (*case.data_sets[0][0], *case.data_sets[0][1])):
            operators = sorted({one.op_type for one in _nodes(case.model)})
            abrupt, settings = not ABRUPT.isdisjoint(operators), tuple(SETTINGS)
            seen[" ".join(operators)] += 1
            if seen[" ".join(operators)] > ALIKE:
                settings = ("auto", "auto, data", "static")
            name = f"{case.name}, between products"
            yield Case(name, partial(sandwich, case), abrupt, exact=False, settings=settings)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _constant(given: Any) -> bool:
    return isinstance(given, np.ndarray) and given.dtype.kind not in "OUS" and given.size > 0


def _feeds(case: Any) -> dict[str, Any]:
    names = [value.name for value in case.model.graph.input]
    return {name: plain(value) for name, value in zip(names, case.data_sets[0][0], strict=True)}


def _loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy, stamped as old as onnxruntime wants it where that changes no operator."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for entry in copy.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > NEWEST:
            known = [n for n in copy.graph.node if not n.domain]
            since = [onnx.defs.get_schema(n.op_type, entry.version, "").since_version for n in known]
            entry.version = entry.version if max(since, default=0) > NEWEST else NEWEST
    copy.ir_version = min(copy.ir_version, 13)
    return copy


def _with_constants(case: Any, names: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Inputs become initializers, so that products, recurrences and lookups have weights."""
    model, feeds = _loadable(case.model), _feeds(case)
    kept = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in names)
    return model, {value.name: feeds[value.name] for value in kept}


def sandwich(case: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Put a Conv or a MatMul before every float input and behind every float output that has the rank for it."""
    model, feeds = _loadable(case.model), _feeds(case)
    before, behind, renamed = [], [], {}
    for value in model.graph.input:
        made = _product(model, value.name, f"{value.name}_in", feeds[value.name])
        if made is not None:
            before.append(made)
            renamed[value.name] = f"{value.name}_in"
    for one in model.graph.node:
        one.input[:] = [renamed.get(name, name) for name in one.input]
    for value, given in zip(model.graph.output, case.data_sets[0][1], strict=True):
        made = _product(model, value.name, f"{value.name}_out", plain(given))
        if made is not None:
            behind.append(made)
            value.name = f"{value.name}_out"
    if before or behind:
        if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
            model.opset_import.append(helper.make_opsetid("", NEWEST))
        nodes = [*before, *model.graph.node, *behind]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return model, feeds


def _has_channels(array: Any) -> bool:
    """Whether a product can work on an array: float32, with channels where a Conv or a MatMul looks for them."""
    if not isinstance(array, np.ndarray) or array.dtype != F or array.ndim < 2:
        return False
    return bool(array.shape[1 if array.ndim <= 5 and array.ndim > 2 else -1])


def _product(model: onnx.ModelProto, source: str, target: str, array: Any) -> onnx.NodeProto | None:
    """A Conv or MatMul that changes little, its weight added to the model; None for other than float32 matrices."""
    if not _has_channels(array):
        return None
    image = 3 <= array.ndim <= 5
    channels = array.shape[1 if image else -1]
    random = np.random.default_rng(zlib.crc32(target.encode()))
    weight = F(np.eye(channels) + 0.05 * random.standard_normal((channels, channels)))
    shape = (channels, channels, *[1] * (array.ndim - 2)) if image else (channels, channels)
    model.graph.initializer.append(numpy_helper.from_array(weight.reshape(shape), f"{target}_weight"))
    return helper.make_node(
        "Conv" if image else "MatMul", [source, f"{target}_weight"], [target], name=f"{target}_node"
    )


def _folder_cases() -> Iterator[Case]:
    for path in sorted(FOLDER.glob("*/test_*/model.onnx")):
        yield Case(f"{path.parts[-3]}/{path.parts[-2]}", lambda path=path: _read(path), exact=False)


def _read(path: Path) -> tuple[onnx.ModelProto, dict[str, Any]]:
    model = onnx.load(path)
    feeds = {}
    for index, value in enumerate(model.graph.input):
        stored = path.parent / "test_data_set_0" / f"input_{index}.pb"
        if stored.exists():
            sequence = value.type.WhichOneof("value") == "sequence_type"
            proto = (onnx.SequenceProto if sequence else onnx.TensorProto).FromString(stored.read_bytes())
            feeds[value.name] = plain(proto)
    return model, feeds


def _light_cases() -> Iterator[Case]:
    for path in sorted((FOLDER / "light").glob("*.onnx")):
        yield Case(f"light/{path.stem}", lambda path=path: _filled(path), exact=False)


def _filled(path: Path) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """One of the light models, whose weights are all of one value: with random ones that keep the signal's size."""
    model = onnx.load(path)
    shapes = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    random, kept = np.random.default_rng(0), []
    for one in model.graph.node:
        if one.op_type != "ConstantOfShape":
            kept.append(one)
            continue
        shape = shapes[one.input[0]]
        inner = int(np.prod(shape[1:]))
        array = random.standard_normal(shape) * (2 / inner) ** 0.5 if len(shape) > 1 else 1 + random.random(shape) / 10
        model.graph.initializer.append(numpy_helper.from_array(F(array), one.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    (value,) = (v for v in model.graph.input if v.name not in shapes)
    size = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return model, {value.name: F(random.standard_normal(size))}


@cache
def runs() -> list[tuple[Case, str]]:
    """Every case with each of its settings."""
    return [(case, setting) for case in cases() for setting in case.settings]


def verdict_of(index: int) -> Verdict:
    """Judge a run by its number."""
    case, setting = runs()[index]
    return case.judge(setting)


def name_of(index: int) -> str:
    """Name a run."""
    case, setting = runs()[index]
    return f"{case.name}; {setting}"


if __name__ == "__main__":
    main(name_of, verdict_of)
