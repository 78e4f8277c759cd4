"""Small models for tests of rescaling, and onnxruntime to compare them with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxq.ir import ArrayTensor, Model, Patch, commit, infer_types, load, parse
from onnxq.ir.opset import raise_opset
from onnxq.ir.passes import normalise
from onnxq.rescaling.cross_layer import channel_axes
from onnxq.rescaling.find_groups import find_groups
from onnxq.rescaling.groups import ScaleGroup
from onnxq.runtime.session import open_session, run_session

MODELS = Path(__file__).parents[2] / "sample_models"
OPSET = 13  # what a scale for each channel needs


def build(nodes, shape, weights, *, outputs=("y",), opset=17) -> Model:
    """Make a model of `(op, inputs, outputs[, attributes])` with one input `x`."""
    made = [helper.make_node(op, i, o, name=f"{op}_{o[0]}", **(rest[0] if rest else {})) for op, i, o, *rest in nodes]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    model = parse(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()
    )
    infer_types(model)
    return model


def run(model: Model | bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run with every optimisation of onnxruntime off."""
    encoded = model if isinstance(model, bytes) else model.serialize()
    return run_session(open_session(encoded, optimize="none", threads=1), None, feeds)


def difference(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Greatest difference in relation to the greatest value, over all outputs."""
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(one, other, strict=True))


def sqnr(reference: np.ndarray, result: np.ndarray) -> float:
    """Signal to noise in dB."""
    exact = reference.astype(np.float64)
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - result).sum()))


def divide(group: ScaleGroup, divisor: np.ndarray) -> None:
    """Let the constants of a group absorb factors, each place by itself."""
    arrays: dict[tuple, np.ndarray] = {}
    for constant in group.constants:
        place = constant.node, constant.slot
        array = arrays.get(place, constant.value.constant.numpy().astype(np.float64))
        arrays[place] = constant.apply(array, divisor)
    patches = []
    for (node, slot), array in arrays.items():
        patch = Patch(node.graph, node)
        patch.rewire(node, slot, patch.constant(ArrayTensor(array.astype(np.float32)), "divided"))
        patches.append(patch)
    commit(patches)


def sample(name: str) -> Model:
    model = load(MODELS / f"{name}.onnx")
    normalise(model)
    infer_types(model)
    if model.opset < OPSET:
        model = raise_opset(model, OPSET)
        infer_types(model)
    return model


def linear(model: Model):
    return [node for node in model.graph.nodes if node.op_type in ("MatMul", "Gemm", "Conv")]


def rescale_model(model: Model, seed: int) -> int:
    """Multiply the channels of everything that can be rescaled by e**N(0, 1.2), without changing the function."""
    random = np.random.default_rng(seed)
    axes = channel_axes(linear(model))
    groups = find_groups({model.graph.values[name]: axis for name, axis in axes.items()})
    count = 0
    for group in dict.fromkeys(group for group in groups.values() if not group.limits):
        divide(group, np.exp(random.normal(0, 1.2, group.channels)))
        count += 1
    return count


def nothing_changes(nodes: list[tuple], shape: list[int | str], weights: dict[str, np.ndarray]) -> None:
    """Divide what belongs to `z`, and assert that this changes `z` and no output; their names begin with y."""
    made = {name for _, _, outputs, *_ in nodes for name in outputs}
    outputs = sorted(name for name in made if name.startswith("y"))
    model = build(nodes, shape, weights, outputs=outputs)
    x = _feed(model)
    before = run(model, x)
    value = model.graph.values["z"]
    group = find_groups({value: _axis_of(model)})[value]
    divide(group, np.exp(np.random.default_rng(1).normal(0, 1.5, group.channels)))
    after = run(model.serialize(extra_outputs=[value]), x)
    assert difference(before, after[:-1]) < 1e-5
    assert not np.allclose(run(build(nodes, shape, weights, outputs=["z"]), x)[0], after[-1], rtol=0.1)


def stays(nodes: list[tuple], shape: list[int | str], weights: dict[str, np.ndarray]) -> None:
    """Assert that `z` of a sound model cannot be divided."""
    outputs = ["y", "y2"] if any("y2" in outputs for _, _, outputs, *_ in nodes) else ["y"]
    model = build(nodes, shape, weights, outputs=outputs)
    run(model, _feed(model))
    value = model.graph.values["z"]
    assert value not in find_groups({value: _axis_of(model)})


def _axis_of(model: Model) -> int:
    reader = next(node for node in model.graph.nodes if node.inputs[0] is model.graph.values["z"])
    return 1 if reader.op_type == "Conv" else -1


def _feed(model: Model) -> dict[str, np.ndarray]:
    shape = [size if isinstance(size, int) else 3 for size in model.graph.inputs[0].shape]
    return {"x": np.random.default_rng(7).standard_normal(shape).astype(np.float32)}
