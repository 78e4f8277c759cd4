"""The most tokens that a language model has places for, by its tables of embedded positions and of rotations.

Tests: `tests/data/test_text_source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxq.data.text.feeds import text_feeds
from onnxq.data.text.roles import TextInputs
from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator
from onnxq.ir import Model, Node, Value
from onnxq.ir.graph import MICROSOFT
from onnxq.ir.topological_order import needed_nodes

FEWEST = 8  # places of a table
ROTATING = {  # slots of a table of cosines, and of places in it, of the last token for attention
    (MICROSOFT, "GroupQueryAttention"): (7, 5),
    (MICROSOFT, "RotaryEmbedding"): (2, 1),
    ("", "RotaryEmbedding"): (1, 3),
}
INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def most_places(model: Model | None, wanted: TextInputs, most: int, padding: int) -> int:
    """Return how many tokens of a text the model has places for; `most` where it is not known to be fewer.

    Indices into its tables are computed for a text of that length. They depend on sizes and masks, so no
    matrix is read whole.

    Args:
        model: The float model, if it is at hand.
        wanted: Its inputs.
        most: Tokens of the longest text.
        padding: The id that stands for no token.

    """
    tables = {} if model is None else dict(_tables(model, wanted, most))
    if model is None or not tables:
        return most
    try:
        evaluator, fits = Evaluator(model), most
        names = [value.name for value in tables if not value.is_input]
        for _ in range(2):  # the second run tells whether fewer tokens are enough
            feeds = _feeds(model, wanted, fits, padding)
            found = feeds | (evaluator.run(feeds, names) if names else {})
            over = max(int(np.max(found[value.name], initial=0)) + 1 - rows for value, rows in tables.items())
            if over <= 0:
                return fits
            fits -= over
            if fits < FEWEST:
                break
    except (OnnxqError, ValueError):  # what is wrong with the model is said by those that have to run it
        pass
    return most


def _tables(model: Model, wanted: TextInputs, most: int) -> Iterator[tuple[Value, int]]:
    """Yield indices into tables that may have too few rows, and how many rows there are."""
    for node in model.graph.nodes:
        slots = (0, 1) if node.op_type == "Gather" and not node.domain else ROTATING.get((node.domain, node.op_type))
        table, index = (None, None) if slots is None else (node.input(slot) for slot in slots)
        if table is None or table.constant is None or index is None:
            continue
        shape = table.constant.shape
        if len(shape) != 2 or not FEWEST <= shape[0] < 2 * most or node.attribute("axis", 0) != 0:
            continue
        if index.constant is not None or index.name == wanted.ids.name:
            continue
        if not any(map(_reads_matrix, needed_nodes(model.graph, [index]))):
            yield index, shape[0]


def _reads_matrix(node: Node) -> bool:
    """Tell whether a node reads a whole constant matrix of floats."""
    if node.op_type == "Gather":
        return False
    tensors = [value.constant for value in node.reads]
    return any(one is not None and len(one.shape) > 1 and one.dtype not in INTEGERS for one in tensors)


def _feeds(model: Model, wanted: TextInputs, length: int, padding: int) -> dict[str, np.ndarray]:
    """Return a text of so many tokens, with empty caches."""
    given = {wanted.ids.name: np.full(length, 0 if padding else 1)}
    given |= {one.name: np.ones(length) for one in (wanted.mask,) if one is not None}
    given |= {one.name: np.zeros(length) for one in (wanted.types,) if one is not None}
    given |= {one.name: np.arange(length) for one in (wanted.positions,) if one is not None}
    return text_feeds((value for value in model.graph.inputs if value.tensor is None), given)
