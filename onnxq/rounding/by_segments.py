"""Codes of the weights of a large model, chosen on what each layer reads: one segment after the other.

All samples advance together. The second moments of a segment's layers decide the codes of their weights, and are gone
before the next segment.

Tests: `tests/rounding/test_by_segments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from onnxq.calibration.float_runs import run_failed
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import Stats
from onnxq.calibration.thinning import Thinning
from onnxq.data.validation import Sample
from onnxq.ir import Model, Node
from onnxq.ir.storage.scratch_file import Spool
from onnxq.ir.storage.shelf import Shelf, release_array
from onnxq.progress import working
from onnxq.runtime.ort_session import Settings
from onnxq.runtime.segmented import StreamedSession
from onnxq.runtime.session import Session, SessionError, run_session

MOMENTS = 128 << 20  # bytes of second moments of the layers of a segment, or of one layer


def moments_by_segments(
    model: Model, nodes: Iterable[Node], samples: Mapping[int, Sample], spool: Spool
) -> Iterator[tuple[list[Node], MeasuredLayers, Stats]]:
    """Yield layers with the second moments of what they read, those of a segment at a time.

    Args:
        model: The float model.
        nodes: The layers; those inside bodies are left out.
        samples: What to run, by its number in the data.
        spool: In whose folder values between segments are kept.

    Raises:
        DataError: The model does not run on a sample.

    """
    wanted = [node for node in nodes if node.graph is model.graph]
    inputs = MeasuredLayers(wanted, memory=MOMENTS * max(len(wanted), 1)).inputs
    taps = dict.fromkeys(value for value, _ in inputs.values() if not value.is_input)
    first = {key: node for node, key in reversed(list(inputs.items()))}  # of those that read the same
    besides = {node: MeasuredLayers([node], memory=MOMENTS).bytes // 2 for node in first.values()}
    session = StreamedSession(model, Settings("basic", reuse_shapes=False), list(taps), besides)
    thinning, done = Thinning.of(len(samples)), 0
    layers = _Layers([], thinning)

    def look(segment: Sequence[Node], values: Mapping[str, Any]) -> None:
        nonlocal layers
        if layers.segment is not segment:
            layers = _Layers(segment, thinning, [node for node in segment if node in inputs])
        layers.add(values)

    numbered = list(samples.items())

    def run(place: int) -> Callable[..., list[Any]]:
        def tried(session: Session, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
            try:
                return run_session(session, names, inputs)
            except SessionError as error:
                raise run_failed(model, *numbered[place], error) from error

        return tried

    with Shelf(spool.folder) as shelf, working("round") as advance:
        for segment in session.run_together([*samples.values()], run, shelf.keep, look):
            if layers.segment is segment and layers.nodes:
                yield layers.nodes, layers.measured, layers.stats
                done += len(layers.nodes)
                advance(done, len(inputs))
            layers = _Layers([], thinning)


class _Layers:
    """The layers of a segment, and what is measured of them."""

    def __init__(self, segment: Sequence[Node], thinning: Thinning, nodes: Sequence[Node] = ()) -> None:
        self.segment, self.nodes = segment, list(nodes)
        self.measured = MeasuredLayers(nodes, memory=MOMENTS)
        # Not a method of this, which would hold itself: collections are off
        self.stats = Stats(partial(self.measured.kinds, basics=_nothing, thinning=thinning))

    def add(self, values: Mapping[str, Any]) -> None:
        """Take in the values of a sample."""
        for value in self.measured.values:
            self.stats.begin(value.name)
            self.stats.add(value.name, values[value.name])
            release_array(values[value.name])


def _nothing(_: str) -> Sequence[Statistic]:
    return ()
