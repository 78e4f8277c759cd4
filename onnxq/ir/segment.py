"""A model cut into parts that run one after the other, so that the weights of one part at a time are in memory.

`cut_changed` finds the part of a changed copy that the changes reach.

Tests: `tests/runtime/test_segmented.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxq.ir.encode import encode_node, encode_type, encode_value
from onnxq.ir.graph import Graph, Node, Value
from onnxq.ir.model import Model
from onnxq.ir.proto_fields import (
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NAME,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    GRAPH_SPARSE,
    MODEL_FUNCTIONS,
    MODEL_GRAPH,
)
from onnxq.ir.schemas import RANDOM
from onnxq.ir.tensor import Tensor
from onnxq.ir.topological_order import reads
from onnxq.ir.wire import Chunk, bytes_field, fields, join, message_field

NOWHERE = "dev/null"
# Element types that NumPy has as well, so that a mapped array serves a runtime as it is
MAPPABLE = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL}
    | {TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64}
    | {TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64}
)
FOLDED = 16 << 20  # bytes up to which a weight that is cast is given to a runtime as it is, which casts it in advance
CAST_GROWTH = 5  # a weight in 8 bits that is cast to float32 takes four times its bytes in addition


@dataclass
class Segment:
    """A run of nodes of the main graph.

    Attributes:
        nodes: The nodes, in order.
        constants: Initializers of the main graph that they read.
        inputs: What they read of graph inputs and of segments before.
        outputs: What segments behind or the caller read of theirs.

    """

    nodes: list[Node]
    constants: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)


def cut_segments(
    model: Model, budget: int, taps: Sequence[Value] = (), besides: Mapping[Node, int] | None = None
) -> list[Segment]:
    """Cut the main graph where few values cross, so that the weights of a segment take about `budget` bytes.

    Nodes that read constants alone, such as a Cast of scales, are in each segment that reads what they make. A runtime
    then knows those values when it opens the segment.

    Args:
        model: A model with its types inferred: a cut crosses only values whose element type is known.
        budget: Bytes of weights in a segment; one weight beyond that has a segment for itself.
        taps: Values of the main graph that have to be outputs of their segments.
        besides: Bytes that nodes take apart from their weights.

    """
    graph, wanted = model.graph, {*model.graph.outputs, *taps}
    alone = _made_of_constants(graph, wanted)
    apart = dict.fromkeys(alone.values())
    nodes = [node for node in graph.nodes if node not in apart]
    needs = [_needs(node, alone) for node in nodes]
    last = {value: index for value, index in _last_readers(needs).items() if value not in alone}
    crossing = _crossing(nodes, last)
    costs = _costs(needs)
    if besides is not None:
        costs = [cost + besides.get(node, 0) for node, cost in zip(nodes, costs, strict=True)]
    starts, weight = [0], 0
    for index, cost in enumerate(costs):
        place = _place(crossing, costs, starts[-1], index, weight) if weight and weight + cost > budget else None
        if place is not None:
            weight = sum(costs[place:index])
            starts.append(place)
        weight += cost
    segments = []
    for start, end in zip(starts, [*starts[1:], len(nodes)], strict=True):
        read = dict.fromkeys(value for found in needs[start:end] for value in found)
        making = {alone[value] for value in read if value in alone}
        segment = Segment([*(node for node in apart if node in making), *nodes[start:end]])
        made = {value: None for node in segment.nodes for value in node.makes}
        segment.constants = [value for value in read if value.tensor is not None]
        segment.inputs = [v for v in read if v.tensor is None and v not in made and (v.producer or v.is_input)]
        segment.outputs = [value for value in made if value in wanted or last.get(value, -1) >= end]
        segments.append(segment)
    return segments


def _made_of_constants(graph: Graph, wanted: Set[Value]) -> dict[Value, Node]:
    """Return values that nodes make of constants alone, with those nodes; none that the caller wants.

    Values that nodes make of those count as well: scales of few bits are a Gather of a Cast.
    """
    made: dict[Value, Node] = {}
    for node in graph.nodes:
        read = list(reads(node))
        if read and node.op_type not in RANDOM and all(v.constant is not None or v in made for v in read):
            outputs = node.makes
            if not node.bodies and wanted.isdisjoint(outputs):
                made |= dict.fromkeys(outputs, node)
    return made


def _needs(node: Node, alone: Mapping[Value, Node]) -> list[Value]:
    """Return what a node and its bodies read of the main graph, and what the values among that are made of."""
    found: dict[Value, None] = {}
    waiting = [value for value in reads(node) if value.graph is node.graph][::-1]
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found[value] = None
        waiting += list(reads(alone[value]))[::-1] if value in alone else []
    return list(found)


def _last_readers(needs: Sequence[Sequence[Value]]) -> dict[Value, int]:
    return {value: index for index, found in enumerate(needs) for value in found if value.producer is not None}


def _crossing(nodes: Sequence[Node], last: dict[Value, int]) -> list[int | None]:
    """Count, for each node, the values from before it that are read from it on; None where one has an unknown type."""
    changes, unknown = [0] * (len(nodes) + 1), [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        for value in node.outputs:
            if value is not None and last.get(value, index) > index:
                for counts in (changes, unknown) if value.dtype is None else (changes,):
                    counts[index + 1] += 1
                    counts[last[value] + 1] -= 1
    crossing: list[int | None] = []
    count = blocked = 0
    for change, block in zip(changes, unknown, strict=True):
        count, blocked = count + change, blocked + block
        crossing.append(None if blocked else count)
    return crossing


def _costs(needs: Sequence[Sequence[Value]]) -> list[int]:
    """Bytes of weights that each node is the first to read."""
    seen: set[Value] = set()
    costs = []
    for found in needs:
        fresh = [value for value in found if value.tensor is not None and value not in seen]
        seen.update(fresh)
        costs.append(sum(_bytes(value) for value in fresh))
    return costs


def _bytes(value: Value) -> int:
    assert value.tensor is not None
    return value.tensor.nbytes * (CAST_GROWTH if _is_cast(value) else 1)


def _is_cast(value: Value) -> bool:
    return any(use.node.op_type == "Cast" for use in value.uses)


def _place(crossing: Sequence[int | None], costs: Sequence[int], start: int, index: int, weight: int) -> int | None:
    """Choose the node to begin the next segment with: fewest values cross, in the later half of the weights."""
    fewest, behind = crossing[index], 0
    best = index if fewest is not None else None
    for place in range(index - 1, start, -1):
        behind += costs[place]
        count = crossing[place]
        if 2 * behind > weight and fewest is not None:
            break
        if count is not None and (fewest is None or count < fewest):
            best, fewest = place, count
    return best


def cut_changed(model: Model, before: Model, known: Collection[str], wanted: Collection[str]) -> Segment | None:
    """Return the nodes between known values and wanted ones in a model that was made by changing a copy of another.

    A value is unchanged that has the name of one of the other model, and is computed alike from unchanged values.

    Args:
        model: The changed model, of types that are known.
        before: The other model, with the very same tensors.
        known: Names of values of the other model that need not be computed where they are unchanged.
        wanted: Names of values of the main graph.

    Returns:
        Its inputs are graph inputs without a default and known values, its outputs those wanted values that changed,
        of which there may be none; None where a node with bodies would be in it.

    """
    unchanged, values = _unchanged(model, before), model.graph.values
    outputs = [value for name in dict.fromkeys(wanted) if (value := values[name]) not in unchanged]
    needed: dict[Node, None] = {}
    constants: dict[Value, None] = {}
    inputs: dict[Value, None] = {}
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value.tensor is not None:  # a default of an input, too: samples do not replace it
            constants[value] = None
        elif value.is_input or (value in unchanged and value.name in known):
            inputs[value] = None
        elif value.producer is not None and value.producer not in needed:
            if value.producer.bodies:
                return None
            needed[value.producer] = None
            waiting += value.producer.reads
    nodes = [node for node in model.graph.nodes if node in needed]
    return Segment(nodes, list(constants), list(inputs), outputs)


def _unchanged(model: Model, before: Model) -> set[Value]:
    """Return the values of the main graph that two models compute alike; see `cut_changed`."""
    found, values = set(model.graph.inputs), before.graph.values
    for node in model.graph.nodes:
        made = [values.get(value.name) if value is not None else None for value in node.outputs]
        old = next((value.producer for value in made if value is not None), None)
        if old is not None and made == old.outputs and _are_alike(node, old, found):
            found.update(node.makes)
    return found


def _are_alike(node: Node, old: Node, unchanged: Collection[Value]) -> bool:
    """Tell whether a node computes what one of another model does."""
    if node.bodies or node.operator != old.operator or len(node.inputs) != len(old.inputs) or node.spans != old.spans:
        return False
    for value, other in zip(node.inputs, old.inputs, strict=True):
        if value is None or other is None:
            if value is not other:
                return False
            continue
        same = value in unchanged or (value.tensor is not None and value.tensor is other.tensor)
        if value.name != other.name or not same:
            return False
    return True


def encode_segment(
    model: Model, segment: Segment, beside: int, types: Collection[int] = MAPPABLE
) -> tuple[bytes, dict[str, Tensor]]:
    """Write a segment as a model of its own.

    Args:
        model: The model that was cut.
        segment: The segment.
        beside: Bytes from which on a weight stays out, unless it is cast and of `FOLDED` bytes at most. In its place
            stands external data in the file `null` of the folder `dev`, where nothing is to be read.
        types: Element types of weights that may stay out.

    Returns:
        A ModelProto, and by name the weights that it does not hold.

    """
    left_out: dict[str, Tensor] = {}
    head: list[Chunk] = []
    sparse = [span for span in model.graph.others for number, *_ in fields(span) if number == GRAPH_SPARSE]
    for number, _, start, _, end in fields(model.data):
        if number == MODEL_FUNCTIONS:
            head.append(model.data[start:end])
    chunks: list[Chunk] = []
    for node in segment.nodes:
        chunks += message_field(GRAPH_NODE, encode_node(node))
    chunks += [bytes_field(GRAPH_NAME, model.graph.name or "segment"), *sparse]
    for value in segment.constants:
        tensor = value.tensor
        assert tensor is not None
        inside = tensor.nbytes < beside or (_is_cast(value) and tensor.nbytes <= FOLDED)
        if not inside and tensor.dtype in types:
            left_out[value.name] = tensor
            chunks += tensor.encode_external(value.name, number=GRAPH_INITIALIZER, location=NOWHERE, offset=0)
        else:
            chunks += tensor.encode(value.name, number=GRAPH_INITIALIZER)
    for kind, values in ((GRAPH_INPUT, segment.inputs), (GRAPH_OUTPUT, segment.outputs)):
        for value in values:
            listed = value.is_input or value.is_output
            chunks += message_field(kind, [encode_value(model.graph, value) if listed else encode_type(value)])
    return join([model.header(), *head, *message_field(MODEL_GRAPH, chunks)]), left_out
