"""Small models, and the way from a float model to a quantized one in memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from onnxq.calibration.activation_qparams import scheme_qparams
from onnxq.calibration.calibrate import calibrate
from onnxq.ir import Model, infer_types, parse
from onnxq.ir.pass_manager import apply_changes
from onnxq.lowering.rewrite import rewrite
from onnxq.planning.planner import Decision, Plan, make_plan
from onnxq.planning.recipe import Recipe, load_recipe
from onnxq.targets.host import host_saturates

F = np.float32
Feeds = Mapping[str, np.ndarray]
NONE = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Standard normal float32 numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F)


def peak_memory(call: Callable[[], object]) -> int:
    """Peak bytes that a call allocates, as Python and NumPy report them to tracemalloc.

    The least of three calls. tracemalloc counts all threads, and that of pytest-xdist makes lists when it hands out
    tests.
    """
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


def unlike(weight: np.ndarray, axis: int = -2) -> np.ndarray:
    """The same magnitudes, with unlike signs along the axis that a product sums over.

    Two products of neighbours then cannot leave 16 bits on any processor, and codes use all of their 8.
    """
    shape = [-1 if number == axis % weight.ndim else 1 for number in range(weight.ndim)]
    signs = np.where(np.arange(weight.shape[axis]) % 2, F(-1), F(1)).reshape(shape)
    return np.abs(weight) * signs


def unlike_kernel(weight: np.ndarray) -> np.ndarray:
    """As `unlike`, of a Conv: kernels sum over positions, and over the channels within each."""
    inner = np.moveaxis(weight, 1, -1)
    signs = np.where(np.arange(inner[0].size) % 2, F(-1), F(1)).reshape(1, *inner.shape[1:])
    return np.ascontiguousarray(np.moveaxis(np.abs(inner) * signs, -1, 1))


def node(op_type: str, inputs: str, outputs: str, *, name: str | None = None, **attributes: Any) -> onnx.NodeProto:
    """A node from space-separated tensor names (`-` for an absent input), named after its first output."""
    reads = ["" if given == "-" else given for given in inputs.split()]
    made = outputs.split()
    return helper.make_node(op_type, reads, made, name=f"n_{made[0]}" if name is None else name, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | Mapping[str, int],
    weights: Mapping[str, np.ndarray],
    name: str = "g",
) -> onnx.GraphProto:
    """A graph; inputs are shapes (float) or `(element type, shape)`, outputs float of unknown shape."""
    typed = {n: given if isinstance(given, tuple) else (TensorProto.FLOAT, given) for n, given in inputs.items()}
    kinds = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, TensorProto.FLOAT)
    return helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in typed.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()],
        [onnx.numpy_helper.from_array(np.asarray(array), n) for n, array in weights.items()],
    )


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | Mapping[str, int] = ("y",),
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A checked model with operator set and IR version stated."""
    ir_version = 6 if opset < 13 else 8 if opset < 19 else 10
    made = graph(nodes, inputs, outputs, weights or {})
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    _state_ranks(model)
    onnx.checker.check_model(model)
    return model


def _state_ranks(model: onnx.ModelProto) -> None:
    """Give the outputs their inferred types: the checker wants a rank for every one."""
    arrays = {w.name: helper.make_tensor_type_proto(w.data_type, w.dims) for w in model.graph.initializer}
    for output in model.graph.output:
        output.type.CopyFrom(arrays.get(output.name, output.type))
    inferred = onnx.shape_inference.infer_shapes(model).graph.output
    for output, known in zip(model.graph.output, inferred, strict=True):
        output.CopyFrom(known)


def typed(proto: onnx.ModelProto) -> Model:
    """The model as onnxq sees it when it plans."""
    model = parse(proto.SerializeToString())
    infer_types(model)
    return model


def session(data: bytes | Path, level: Any = NONE, keep: str = "", *, exact: bool = False) -> ort.InferenceSession:
    """A quiet session on one thread.

    Args:
        data: The model, or its file.
        level: Of optimisation.
        keep: Where to write the optimised model.
        exact: Compute integer products exactly where this processor's kernels saturate: onnxruntime then makes uint8 of
            int8 weights. For models that are made for other processors.

    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    if keep:
        options.optimized_model_filepath = keep
    if exact and host_saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    given = str(data) if isinstance(data, Path) else data
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def run(data: bytes | Path, feeds: Feeds, level: Any = NONE, *, exact: bool = False) -> list[np.ndarray]:
    """All outputs, without any optimisation unless asked for; see `session`."""
    return list(session(data, level, exact=exact).run(None, dict(feeds)))


def applied(change: Callable[..., Any], model: Model, *told: Any) -> int:
    """Carry out what the function of a pass does or describes, and give how often it did."""
    found = change(model, *told)
    return found if isinstance(found, int) else apply_changes(model, found)


def changed_alike(
    proto: onnx.ModelProto,
    change: Callable[..., Any],
    feeds: Feeds,
    levels: Sequence[Any] = (NONE, ALL),
    *,
    exact: bool = False,
) -> tuple[onnx.ModelProto, int]:
    """Apply what may change no bit of any output, check and compare; give the model and how often it was applied.

    With `exact`, weights may be such that other neighbours saturate afterwards; see `session`.
    """
    model = typed(proto)
    count = applied(change, model)
    made = onnx.ModelProto.FromString(model.serialize())
    onnx.checker.check_model(made, full_check=True)
    for level in levels:
        expected, found = (run(one.SerializeToString(), feeds, level, exact=exact) for one in (proto, made))
        for before, after in zip(expected, found, strict=True):
            np.testing.assert_array_equal(before, after)
    return made, count


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the bodies inside it."""
    for one in graph.node:
        yield one
        for attribute in one.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from every_node(attribute.g)


def count_ops(proto: onnx.ModelProto) -> Counter[str]:
    """Number of nodes by operator type, bodies included."""
    return Counter(one.op_type for one in every_node(proto.graph))


@dataclass
class Quantized:
    """A model before and after."""

    source: bytes
    data: bytes
    plan: Plan

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.ModelProto.FromString(self.data)

    @property
    def ops(self) -> Counter[str]:
        return count_ops(self.proto)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return {w.name: onnx.numpy_helper.to_array(w) for w in self.proto.graph.initializer}

    def decision(self, name: str) -> Decision:
        return next(d for d in self.plan.decisions if d.node.name == name)

    def run(self, feeds: Feeds, level: Any = NONE, *, exact: bool = False) -> list[np.ndarray]:
        return run(self.data, feeds, level, exact=exact)

    def float_run(self, feeds: Feeds) -> list[np.ndarray]:
        return run(self.source, feeds)

    def run_taps(self, feeds: Feeds, *names: str) -> list[np.ndarray]:
        """Run and give uint8 tensors from inside."""
        proto = self.proto
        del proto.graph.output[:]
        proto.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.UINT8, None) for n in names)
        return run(proto.SerializeToString(), feeds)

    def sqnr(self, feeds: Feeds, level: Any = NONE, *, exact: bool = False) -> float:
        """Worst signal-to-noise ratio of all outputs, in dB."""
        pairs = zip(self.float_run(feeds), self.run(feeds, level, exact=exact), strict=True)
        return min(sqnr(expected, got) for expected, got in pairs)

    def optimized_proto(self) -> onnx.ModelProto:
        """The graph that onnxruntime makes of the model."""
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "optimized.onnx")
            session(self.data, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, path)
            return onnx.load(path)

    def optimized(self) -> Counter[str]:
        """Operators of that graph."""
        return count_ops(self.optimized_proto())


def sqnr(expected: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-quantization-noise ratio in dB."""
    assert expected.shape == got.shape
    noise = float(np.square(expected.astype(np.float64) - got).sum())
    signal = float(np.square(expected, dtype=np.float64).sum())
    return 10 * np.log10(signal / noise) if noise else np.inf


def recipe_of(name: str, **settings: Any) -> Recipe:
    """A recipe of ours with some settings changed, in its rules as well."""
    recipe = load_recipe(name)
    return replace(recipe, scheme=replace(recipe.scheme, **settings))


def converted(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same model for a newer operator set."""
    made = onnx.version_converter.convert_version(proto, opset)
    made.ir_version = 10 if opset > 18 else 8
    return made


def quantize_in_memory(
    proto: onnx.ModelProto,
    recipe: str | Recipe = "dynamic-int8",
    samples: Sequence[Feeds] = (),
    **settings: Any,
) -> Quantized:
    """parse → infer_types → make_plan → calibrate → rewrite → bytes, with the opset raised by conversion if need be."""
    chosen = recipe_of(recipe, **settings) if isinstance(recipe, str) else recipe
    model = typed(proto)
    plan = make_plan(model, chosen, with_data=bool(samples))
    if plan.opset > model.opset:
        return quantize_in_memory(converted(proto, plan.opset), chosen, samples)
    source = proto.SerializeToString()
    qparams = {}
    if plan.calibrated():
        stats = calibrate(model, plan.calibrated(), samples, threads=1)
        for value in plan.calibrated():
            qparams[value] = scheme_qparams(stats[value.name], plan.range_settings(value))
    data = rewrite(model, plan, qparams).serialize()
    onnx.checker.check_model(onnx.ModelProto.FromString(data), full_check=True)
    return Quantized(source, data, plan)
