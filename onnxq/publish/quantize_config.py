"""The file `quantize_config.json` of models for transformers.js: how the files next to it were quantized.

Its keys are those that `scripts/convert.py` of transformers.js writes. Its library does not read the file; people and
scripts that convert a model again do.

Tests: `tests/publish/test_export.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from onnxq.planning.recipe import in_blocks
from onnxq.publish.conventions import PublishedFile
from onnxq.publish.model_card import ExportedFile
from onnxq.version import __version__


def quantize_config(files: Sequence[PublishedFile], done: Sequence[ExportedFile], block: int) -> str:
    """Write the settings as JSON, a line end behind them.

    Args:
        files: Those that were written.
        done: What is known of each, in the same order.
        block: Weights that share a scale in 4 bits.

    """
    small = next((file for file in files if file.bits is not None), None)
    blocks = None if small is None or small.bits is None else in_blocks(small.bits, block, small.target or "cpu")
    settings = {
        "modes": [file.mode for file in files if file.mode is not None],
        "per_channel": True,  # of weights in 8 bits
        "reduce_range": False,
        "block_size": None if blocks is None else block,
        "is_symmetric": blocks is None or not blocks.scheme.zero_points,
        "accuracy_level": None if blocks is None else blocks.scheme.accuracy_level or None,
        "quant_type": None,  # of NF4, which onnxq does not write
        "op_block_list": None,
        "quantized_by": f"onnxq {__version__}",
        "recipes": {file.name: made.recipe for file, made in zip(files, done, strict=True)},
    }
    return json.dumps(settings, indent=4) + "\n"
