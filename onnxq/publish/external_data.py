"""The name of the file with the weights of a large model, as ecosystems load it.

onnxq writes `NAME.onnx.data`; the Hub and transformers.js look for `NAME.onnx_data`.

Tests: `tests/publish/test_export.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from onnxq.ir.proto_fields import bodies
from onnxq.ir.storage.files import data_path


def rename_data(model: Path, suffix: str) -> bool:
    """Rename the file with the weights of a model, and correct the name in the model.

    Args:
        model: A model that onnxq has written.
        suffix: What is to stand behind the name of the model.

    Returns:
        Whether there is such a file.

    """
    old, new = data_path(model), model.with_name(f"{model.name}{suffix}")
    if new == old or not old.exists():
        return old.exists()
    proto = onnx.load(model, load_external_data=False)
    for tensor in _tensors(proto.graph):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == old.name:
                entry.value = new.name
    old.replace(new)
    model.write_bytes(proto.SerializeToString(deterministic=True))
    return True


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of a graph, and those of bodies inside its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
        for body in bodies(node):
            yield from _tensors(body)
