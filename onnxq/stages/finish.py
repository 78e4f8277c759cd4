"""The last steps for a quantized model: optimization for the target, metadata."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from onnxq.ir import Model
from onnxq.ir.graph import state_output_shapes
from onnxq.ir.half_tensor import store_narrow
from onnxq.ir.storage.files import written_bytes
from onnxq.lowering.prompt_branch import with_prompt_branch
from onnxq.optimize.dedup_constants import merge_equal
from onnxq.optimize.narrow_constants import narrow_constants
from onnxq.optimize.optimize import optimize_for_target
from onnxq.stages.prepared import Prepared
from onnxq.targets.target import load_target
from onnxq.text import size
from onnxq.version import __version__

SHRUNK = 0.5  # of the float model's bytes: users expect a quarter, so a larger file is explained


def finalize(model: Model, prepared: Prepared, keep: Callable[[np.ndarray], np.ndarray] = np.asarray) -> Model:
    """Finish a quantized model: in the form that is fastest, nothing stored twice, with a record of what made it.

    Args:
        model: The model, which is changed.
        prepared: What it was made of.
        keep: Puts an array out of memory.

    Returns:
        The model; another one where its operator set had to be raised.

    """
    model = optimize_for_target(model, prepared.plan.recipe.scheme.target)
    if model.residency.copies:
        merge_equal(model)
    if load_target(prepared.plan.recipe.scheme.target).stored == "cast-mul":
        narrow_constants(model, keep)
    store_narrow(model)
    state_output_shapes(model.graph)
    model.metadata["onnxq_version"] = __version__
    model.metadata["onnxq_recipe"] = prepared.plan.recipe.to_toml()
    model.metadata["onnxq_source_sha256"] = prepared.source
    if prepared.plan.costs.timings is not None:
        model.metadata["onnxq_timings"] = json.dumps(prepared.plan.costs.timings.as_dict(), separators=(",", ":"))
    return model


def with_fast_prompts(model: Model, target: str, most: int | None, data_file: str | None = None) -> Model:
    """Let a finished model multiply many rows at once in float, if that is faster on the target and the size allows it.

    Args:
        model: The quantized model.
        target: Name of the runtime that it is for.
        most: Bytes that the file may have; None for any number.
        data_file: Name of the file that the weights go to, if not into the model.

    Returns:
        Another model; the very same where nothing is gained.

    """
    made = with_prompt_branch(model, load_target(target).token_rows)
    if made is model or most is None:
        return made
    return made if written_bytes(made, data_file) <= most else model


def size_note(model: Model, before: int, after: int) -> tuple[str, ...]:
    """Say what a file consists of that is more than half as large as the float model's; nothing where it is smaller.

    Args:
        model: The quantized model.
        before: Bytes of the float model.
        after: Bytes of the quantized one.

    """
    if after <= SHRUNK * before:
        return ()
    narrow = wide = 0
    for value in model.initializers():
        assert value.tensor is not None
        one_byte = value.tensor.nbytes <= max(value.tensor.size, 1)
        narrow, wide = narrow + value.tensor.nbytes * one_byte, wide + value.tensor.nbytes * (not one_byte)
    rest = max(after - narrow - wide, 0)
    parts = (
        f"{size(narrow)} of constants in 8 bit or less, {size(wide)} in wider types, {size(rest)} of nodes and names"
    )
    return (f"the file is {after / before:.2f} of the float model's size: {parts}",)
