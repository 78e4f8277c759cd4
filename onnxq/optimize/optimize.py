"""A quantized model in the form that a runtime computes fastest, every node by itself the same to the bit.

It comes last: what is filled up or folded has no counterpart in the float model any more, which trials compare it with.
"""

from __future__ import annotations

from onnxq.ir import Model, infer_types
from onnxq.ops.forms.integer_domain import CLAMPS, CLIP_OF_CODES
from onnxq.ops.forms.silu import MICROSOFT
from onnxq.optimize.body_captures import copy_for_bodies
from onnxq.optimize.channels_last import keep_channels_last
from onnxq.optimize.coordinates_first import put_coordinates_first
from onnxq.optimize.fold_columns import fold_columns
from onnxq.optimize.fold_taps import fold_taps
from onnxq.optimize.integer_clip import clamp_codes
from onnxq.optimize.merge_scales import join_scales
from onnxq.optimize.nearest_upsampling import double_codes
from onnxq.optimize.pad_channels import align
from onnxq.optimize.pairwise_difference import join_differences
from onnxq.optimize.prelu import spell_slopes
from onnxq.optimize.quick_gelu import write_silu
from onnxq.optimize.redundant_clip import drop_clips
from onnxq.optimize.row_transposes import ORDERING, move_single_axes
from onnxq.optimize.sequence_first import put_sequence_first
from onnxq.optimize.share_dequantize import share_conversions
from onnxq.targets.target import load_target

PAD_OPSET = 11  # from here on Pad takes codes, and how many as an input; and Resize is the operator that it is today
BROADCAST_OPSET = 8  # from here on Max takes a single input, and broadcasts


def optimize_for_target(model: Model, target: str) -> Model:
    """Change a quantized model for a target, most of all where its kernels are known.

    Args:
        model: A quantized model; it is changed.
        target: Name of the runtime.

    Returns:
        The same model.

    """
    wanted = load_target(target)
    drop_clips(model)
    if wanted.timed and model.opset >= BROADCAST_OPSET:
        join_scales(model)
        put_sequence_first(model)
        join_differences(model)
    if wanted.timed and MICROSOFT in wanted.domains:
        write_silu(model)
    kinds = {node.op_type for node in model.graph.walk()} if wanted.timed else set()
    if "Conv" in kinds:
        share_conversions(model)
    if not kinds.isdisjoint({"Conv", "PRelu", *ORDERING}):
        infer_types(model)  # pairs have come in between
    if "Conv" in kinds and model.opset >= PAD_OPSET:
        fold_taps(model, wanted)
        if align(model, wanted):
            infer_types(model)  # filters have come in
        fold_columns(model, wanted)
        double_codes(model)
        keep_channels_last(model)
    if not kinds.isdisjoint(CLAMPS) and model.opset >= CLIP_OF_CODES:
        clamp_codes(model)
    if not kinds.isdisjoint(ORDERING):
        move_single_axes(model)
    if "Conv" in kinds:
        put_coordinates_first(model)
    if "PRelu" in kinds and model.opset >= BROADCAST_OPSET:
        spell_slopes(model)
    copy_for_bodies(model)  # what stood between a conversion and a body may have gone
    return model
