"""What is done to a quantized model last: optimization for the target, metadata.

Tests: `tests/search/test_size_search.py`.
"""

from __future__ import annotations

import json

from onnxq.ir import Model
from onnxq.ir.half_tensor import store_narrow
from onnxq.ir.segment import is_large
from onnxq.optimize.dedup_constants import merge_equal
from onnxq.optimize.optimize import optimize_for_target
from onnxq.stages.prepared import Prepared
from onnxq.version import __version__


def finalize(model: Model, prepared: Prepared) -> Model:
    """Finish a quantized model: in the form that is fastest, nothing stored twice, with a record of what made it."""
    optimize_for_target(model, prepared.plan.recipe.scheme.target)
    if not is_large(model):
        merge_equal(model)
    store_narrow(model)
    model.metadata["onnxq_version"] = __version__
    model.metadata["onnxq_recipe"] = prepared.plan.recipe.to_toml()
    model.metadata["onnxq_source_sha256"] = prepared.source
    if prepared.plan.costs.timings is not None:
        model.metadata["onnxq_timings"] = json.dumps(prepared.plan.costs.timings.as_dict(), separators=(",", ":"))
    return model
