"""Kernel times of one model on this machine, in float and in int8, by profiles of tiny models of its shapes.

One thread. Times come from onnxruntime's profiler, the fastest quarter of the runs. Neither conversions nor other work
on the machine count.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxq.ir import Model, Patch, Value, commit, infer_types, parse
from onnxq.ir.storage.temporary import temporary_folder
from onnxq.optimize.optimize import optimize_for_target
from onnxq.planning.cost_model import interpolated, kernel_of
from onnxq.planning.planner import make_plan
from onnxq.planning.recipe import Recipe
from onnxq.progress import working
from onnxq.runtime.ort_session import ORT_ERRORS, SessionError, Settings
from onnxq.runtime.session import open_session, run_session
from onnxq.targets import DEFAULT, load_costs
from onnxq.targets.timings import Kernel, Timings

RUNS, LEAST_RUNS = 40, 4
KERNEL_SECONDS = 0.25  # for the runs of one model of one kernel; at least `LEAST_RUNS` are made
MOST_SECONDS = 30.0  # after that no further kernel is begun
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "ReorderInput", "ReorderOutput")


def benchmark(model: Model, recipe: Recipe, *, with_data: bool, shapes: Mapping[str, tuple[int, ...]]) -> Timings:
    """Measure the kernels of those nodes that could compute in 8 bit.

    Args:
        model: A normalised float model whose types are inferred.
        recipe: The rules.
        with_data: Whether there are samples to calibrate with.
        shapes: Of tensors with open dimensions, by name.

    Returns:
        Times of each shape once, the longest kernels by the table first; those that time was left for.

    """
    target = recipe.scheme.target
    table = load_costs(target)
    found = candidate_kernels(model, recipe, with_data=with_data, shapes=shapes)
    known = {kernel: interpolated(kernel, table) for kernel in found}
    measured, until = dict[Kernel, tuple[int, int]](), time.monotonic() + MOST_SECONDS
    with working("kernels") as advance:
        for count, kernel in enumerate(sorted(known, key=lambda kernel: (-known[kernel][0], str(kernel))), 1):
            if time.monotonic() > until:
                break
            times = kernel_pair(kernel, target)
            if times is not None:
                measured[kernel] = times
            advance(count, len(known))
    ratios = [times[0] / known[kernel][0] for kernel, times in measured.items()]
    return Timings(ort.__version__, measured, float(f"{median(ratios):.4g}") if ratios else 1.0)


def candidate_kernels(
    model: Model, recipe: Recipe, *, with_data: bool, shapes: Mapping[str, tuple[int, ...]]
) -> dict[Kernel, None]:
    """Name the kernels of those nodes that could compute in 8 bit, each once, in graph order; see `benchmark`."""
    plan = make_plan(model, recipe, with_data=with_data, costs_count=False)
    found = [kernel_of(d.node, shapes) for d in plan.decisions if d.scheme in ("static-int8", "dynamic-int8")]
    return dict.fromkeys(kernel for kernel in found if kernel is not None)


def sample_shapes(model: Model, sample: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Run a sample, and give the shapes of those tensors of the main graph whose shapes the model leaves open."""
    values = [value for value in model.graph.values.values() if value.tensor is None and _is_open(value)]
    shapes = {value.name: tuple(sample[value.name].shape) for value in values if value.name in sample}
    made = [value for value in values if value.producer is not None and value.dtype == TensorProto.FLOAT]
    if not made:  # onnxruntime takes no names for all names
        return shapes
    measured, taps = _with_shapes(model, [value.name for value in made])
    try:
        session = open_session(measured, optimize="none", reuse_shapes=False, taps=taps)
        results = run_session(session, [tap.name for tap in taps], sample)
    except SessionError:  # what is wrong with the sample is said when it is calibrated on
        return shapes
    return shapes | {value.name: tuple(map(int, sizes)) for value, sizes in zip(made, results, strict=True)}


def _with_shapes(model: Model, names: Iterable[str]) -> tuple[Model, list[Value]]:
    """Copy a model, and let it give the shapes of these tensors, for all tensors at once can be larger than memory."""
    copy = model.copy()
    patch = Patch(copy.graph, reason="shapes")
    taps = [patch.op("Shape", copy.graph.values[name], hint=f"{name}.shape") for name in names]
    commit([patch])
    return copy, taps


def _is_open(value: Value) -> bool:
    return value.shape is None or not all(isinstance(size, int) for size in value.shape)


def kernel_pair(kernel: Kernel, target: str = DEFAULT) -> tuple[int, int] | None:
    """Return the nanoseconds of a kernel as a target has it, in float and in 8 bit; None where onnxruntime cannot."""
    feeds = {"x": np.random.default_rng(1).standard_normal(kernel.input).astype(np.float32)}
    times = []
    try:
        for quantized in (False, True):
            made = parse(kernel_model(kernel, quantized=quantized))
            infer_types(made)
            found = kernel_times(optimize_for_target(made, target).serialize(), feeds, KERNEL_SECONDS)
            times.append(round(sum(took for kind, took in found.items() if kind not in CONVERSIONS)))
    except ORT_ERRORS:
        return None
    return (times[0], times[1]) if min(times) > 0 else None


def kernel_times(model: bytes, feeds: Mapping[str, np.ndarray], seconds: float = float("inf")) -> dict[str, float]:
    """Return the time of each kernel type in nanoseconds, summed over the nodes of that type in one run.

    Args:
        model: A model.
        feeds: What to run it on.
        seconds: Stop after so long, though not before `LEAST_RUNS` runs.

    """
    options = Settings(threads=1).options()
    options.enable_profiling = True
    with temporary_folder() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        started, runs = time.monotonic(), 0
        while runs < RUNS and (runs < LEAST_RUNS or time.monotonic() - started < seconds):
            session.run(None, dict(feeds))
            runs += 1
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["name"], event["args"]["op_name"]].append(event["dur"] * 1000.0)
    times: dict[str, float] = defaultdict(float)
    for (_, kind), durations in taken.items():
        # The profiler cuts to whole microseconds, half a one off on average; several runs tell more than the least one.
        times[kind] += float(np.mean(sorted(durations)[: max(runs // 4, 1)])) + 500.0
    return times


def kernel_model(kernel: Kernel, *, quantized: bool) -> bytes:
    """Build a model of one kernel, in float or with the Q/DQ pairs that make onnxruntime compute it in 8 bit."""
    attributes = json.loads(kernel.attributes)
    weight = (np.random.default_rng(0).standard_normal(kernel.weight)).astype(np.float32)
    conv = kernel.operator == "Conv"
    axis = 0 if conv or attributes.get("transB") else len(kernel.weight) - 1
    channels = kernel.weight[axis]
    bias = kernel.operator != "MatMul"
    constants: dict[str, np.ndarray] = {}
    nodes, reads = [], ["x", "w", *["b"] * bias]
    if quantized:
        constants |= {"scale": np.array(0.05, np.float32), "zero": np.array(128, np.uint8)}
        constants |= {"w8": np.clip(np.rint(weight / 0.02), -127, 127).astype(np.int8)}
        constants |= {"ws": np.full(channels, 0.02, np.float32), "wz": np.zeros(channels, np.int8)}
        nodes = [*_pair("x", "xd"), helper.make_node("DequantizeLinear", ["w8", "ws", "wz"], ["w"], axis=axis)]
        if bias:
            constants |= {"b32": np.zeros(channels, np.int32), "bs": np.full(channels, 0.001, np.float32)}
            nodes.append(helper.make_node("DequantizeLinear", ["b32", "bs"], ["b"], axis=0))
        reads[0] = "xd"
    else:
        constants |= {"w": weight} | ({"b": np.zeros(channels, np.float32)} if bias else {})
    nodes.append(helper.make_node(kernel.operator, reads, ["c" if quantized and conv else "y"], **attributes))
    nodes += _pair("c", "y") if quantized and conv else []
    return _model(nodes, kernel, constants)


def _pair(source: str, result: str) -> list[Any]:
    return [
        helper.make_node("QuantizeLinear", [source, "scale", "zero"], [f"{source}q"]),
        helper.make_node("DequantizeLinear", [f"{source}q", "scale", "zero"], [result]),
    ]


def _model(nodes: Iterable[Any], kernel: Kernel, constants: Mapping[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, kernel.input)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
