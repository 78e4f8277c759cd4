"""Rows of caches that hold nothing: onnxruntime leaves them as they were in memory, so they are no figures.

A cache of the last tokens (`sliding_window_cache` of GroupQueryAttention) has a fixed number of rows, and fewer tokens
while a text is short.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from onnxq.evaluator import Evaluator
from onnxq.ir import Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ir.shape_inference.cache_width import OPERATOR, PRESENTS, SLIDING, WINDOW
from onnxq.ops.kernels.onnxruntime_decoder import held_rows
from onnxq.runtime.session import ModelSource, source_model

LENGTHS = 5  # the slot of the last token of each sequence


class SlidingCaches:
    """Caches of the last tokens among the outputs of a model.

    Args:
        source: The float model.
        outputs: Names of those that may be caches; without any, the model is not looked at.

    """

    def __init__(self, source: ModelSource, outputs: Collection[str]) -> None:
        self._found: dict[str, tuple[Value, int]] = {}
        model = source_model(source) if outputs else None
        for node in [] if model is None else model.graph.nodes:
            if node.op_type == OPERATOR and node.domain == MICROSOFT and node.attribute(SLIDING, 0):
                lengths, made = node.input(LENGTHS), [node.outputs[slot] for slot in PRESENTS]
                for value in made:
                    if lengths is not None and value is not None and value.name in outputs:
                        self._found[value.name] = lengths, node.attribute(WINDOW)
        self._lengths = list(dict.fromkeys(lengths.name for lengths, _ in self._found.values()))
        self._evaluator = Evaluator(model) if model is not None and self._found else None

    def clear(self, feeds: Mapping[str, np.ndarray], names: Sequence[str], *results: list[Any]) -> None:
        """Set rows without a token to zero in the outputs of models, in place."""
        if self._evaluator is None:
            return
        lengths = self._evaluator.run(dict(feeds), self._lengths)
        for name, (last, window) in self._found.items():
            place = names.index(name)
            for outputs in results:
                outputs[place] = cache = np.array(outputs[place])
                for one, count in zip(cache, lengths[last.name].reshape(-1) + 1, strict=True):
                    one[:, held_rows(int(count), cache.shape[2], window) :] = 0
