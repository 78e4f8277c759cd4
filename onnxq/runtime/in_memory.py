"""A model in memory for onnxruntime, whose large weights are handed over without a copy into the model's bytes.

onnxruntime's Python interface copies the bytes of a model, and the parser copies them again, before a session has
weights of its own. Opening a session over 438 MB of weights took 1.3 GB more, and the bytes stayed as long as the
session (1.31.1). Weights that are handed over as `OrtValue` are copied once. The session is the same to the bit:
optimisations see the weights, which are packed in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnxruntime as ort
from onnx import TensorProto

from onnxq.ir import Model, Tensor, Value
from onnxq.ir.proto_fields import GRAPH_INITIALIZER
from onnxq.ir.segment import NOWHERE, Segment, encode_segment
from onnxq.ir.wire import Chunk, join
from onnxq.runtime.blocked_layout import BLOCKED_LAYOUT, sums_by_blocks
from onnxq.runtime.memory import trim_heap
from onnxq.runtime.ort_session import Settings, load_native

BESIDE = 1 << 16  # bytes from which on a weight is handed over
# Types of weights that NumPy has as well. Other integers stand for sizes and places, which onnxruntime wants to read
# before weights are handed over
TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8)


class InMemory(NamedTuple):
    """A model that onnxruntime is to hold whole, whatever its size, as it is when the session is opened.

    Attributes:
        model: The model.
        taps: Values of the main graph to list as outputs too.

    """

    model: Model
    taps: Sequence[Value] = ()


class EncodedModel(NamedTuple):
    """A model as onnxruntime is told it.

    Attributes:
        data: A ModelProto, in which the weights below are external data where nothing is to be read.
        weights: Weights that are handed over with it, by name.
        by_blocks: Whether sums of float Convs depend on their layout.

    """

    data: bytes
    weights: Mapping[str, Tensor]
    by_blocks: bool = True

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it: equal models of equal outputs have the same."""
        found = hashlib.sha256(self.data)
        for name, tensor in self.weights.items():
            found.update(name.encode())
            found.update(tensor.raw() or b"")
        return found.digest()


def encode(source: InMemory) -> EncodedModel:
    """Write a model for onnxruntime.

    Raises:
        ModelError: A weight cannot be read.

    """
    model, taps = source
    if not any(_goes_beside(value) for value in model.graph.initializers.values()):
        return EncodedModel(model.serialize(extra_outputs=taps), {}, sums_by_blocks(model))
    return EncodedModel(*encode_apart(model, taps), sums_by_blocks(model))


def encode_part(model: Model, part: Segment) -> EncodedModel:
    """Write a part of a model for onnxruntime.

    Raises:
        ModelError: A weight cannot be read.

    """
    return EncodedModel(*encode_segment(model, part, BESIDE, TYPES), sums_by_blocks(model))


def open_encoded(encoded: EncodedModel, settings: Settings) -> ort.InferenceSession:
    """Load a model; nothing of it is needed any more afterwards.

    Raises:
        SessionError: onnxruntime cannot load it.
        ModelError: A weight cannot be read.

    """
    weights = encoded.weights
    if not encoded.by_blocks:
        settings = replace(settings, without=tuple(name for name in settings.without if name != BLOCKED_LAYOUT))
    if not weights:
        return load_native(encoded.data, settings)
    values = {name: ort.OrtValue.ortvalue_from_numpy(tensor.numpy()) for name, tensor in weights.items()}
    trim_heap(sum(tensor.nbytes for tensor in weights.values()))  # blocks of an earlier session rarely fit
    session = load_native(encoded.data, settings, copies=values)
    for tensor in weights.values():
        tensor.release()
    return session


def encode_apart(model: Model, taps: Sequence[Value] = ()) -> tuple[bytes, dict[str, Tensor]]:
    """Write a model without its large weights.

    Returns:
        A ModelProto in which they are external data where nothing is to be read, and the weights by name.

    """
    left_out: dict[str, Tensor] = {}

    def encode(value: Value) -> list[Chunk]:
        assert value.tensor is not None
        if not _goes_beside(value):
            return value.tensor.encode(value.name, number=GRAPH_INITIALIZER)
        left_out[value.name] = value.tensor
        return value.tensor.encode_external(value.name, number=GRAPH_INITIALIZER, location=NOWHERE, offset=0)

    return join(model.chunks(encode, extra_outputs=taps, verbatim=False)), left_out


def _goes_beside(value: Value) -> bool:
    """Whether a weight is large, and read in the main graph: onnxruntime drops a weight without readers there."""
    tensor = value.tensor
    large = tensor is not None and tensor.dtype in TYPES and tensor.nbytes >= BESIDE
    return large and any(use.node.graph is value.graph for use in value.uses) and value.graph.parent is None
