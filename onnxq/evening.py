"""Channels evened out for free, if samples that chose nothing about it gain: shifted to zero, enlarged below a bound.

Ways are tried as `onnxq.trials.rescale` tries others: fitted on one half of the samples and judged on the other, then
with the halves in each other's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxq.anew import duplicate, planned_anew
from onnxq.correction import shift_biases
from onnxq.ir import commit
from onnxq.ir.types import infer_types
from onnxq.judge import Split
from onnxq.quant.calibrate import calibrate
from onnxq.quant.centre import centre, shiftable
from onnxq.quant.channels import ChannelStats
from onnxq.quant.equalize import channel_axes, equalize
from onnxq.quant.folding import Group
from onnxq.quant.samples import Samples
from onnxq.quant.stats import Stats
from onnxq.steps import Prepared
from onnxq.trials import WORTH_RESCALING, nearest, to_rescale

CENTRED = "shifted the channels of {} tensors around zero, in the biases of their neighbours"
ENLARGED = "enlarged channels of {} tensors that stay far below an upper bound, folded into their neighbours"
EQUALIZED = "divided the channels of {} of them, folded into their neighbours"
LEAST_GAIN = 0.2  # dB, estimated for one tensor
MOST_LOST = 0.2  # dB, where the halves change places
Way = Callable[[Prepared, Stats], Prepared]


def even_out(ready: Prepared, split: Split) -> Prepared:
    """Even channels out in the way that gains most on the average of both halves, if that is much and neither loses."""
    if split.samples.made_up or split.halves is None or not to_rescale(ready)[0]:
        return ready
    ways = [way for way in WAYS if _applies(way, ready)]
    gains: dict[Way, list[float]] = {way: [] for way in ways}
    for fitting, judge in zip(split.halves, (split.judge, split.judge_of_fitted), strict=True) if ways else ():
        measured, before = _channels(ready, fitting, trial=True), judge.sqnr(nearest(duplicate(ready), fitting))
        for way in list(gains):
            changed = way(duplicate(ready), measured.copy())
            gained = 0.0 if changed.notes == ready.notes else judge.sqnr(nearest(changed, fitting)) - before
            gains[way].append(gained)
            if gained < -MOST_LOST:
                del gains[way]
        if not gains:
            return ready
    means = {way: sum(gained) / 2 for way, gained in gains.items()}
    best = max(means, key=lambda way: means[way], default=None)
    if best is None or means[best] < WORTH_RESCALING:
        return ready
    return best(ready, _channels(ready, split.samples))


def _channels(ready: Prepared, samples: Samples, *, trial: bool = False) -> Stats:
    """Measure the channels of what is shifted and of what Conv read; roughly for a trial."""
    values = shiftable(ready.model.graph)
    axes = channel_axes(to_rescale(ready)[0]) | {value.name: 1 for value in values}
    taken = [ready.model.graph.values[name] for name in axes]
    return calibrate(ready.model, taken, samples, kinds=lambda name: (ChannelStats(axes[name]),), trial=trial)


def _centre(ready: Prepared, measured: Stats) -> Prepared:
    """Shift channels around zero; then bring those to the same size, which pays more than it did before."""
    values = shiftable(ready.model.graph)
    found = centre(values, measured)
    shift_biases(ready.model, found.biases)
    found.update(measured)
    ready = _changed(ready, CENTRED.format(len(found.values)))

    def among_them(group: Group) -> bool:
        return not group.limits and not group.axes.keys().isdisjoint(values)

    return _divide(ready, measured, EQUALIZED, among_them)


def _enlarge(ready: Prepared, measured: Stats) -> Prepared:
    return _divide(ready, measured, ENLARGED, lambda group: bool(group.limits))


def _both(ready: Prepared, measured: Stats) -> Prepared:
    return _centre(_enlarge(ready, measured), measured)


def _divide(ready: Prepared, measured: Stats, note: str, wanted: Callable[[Group], bool]) -> Prepared:
    nodes, stored = to_rescale(ready)
    made = equalize(nodes, measured, stored=stored, wanted=wanted, least_gain=LEAST_GAIN)
    commit(made.patches)
    made.update(measured)
    count = sum(len(change.divisors) for change in made.changes)
    return _changed(ready, note.format(count)) if count else ready


def _changed(ready: Prepared, note: str) -> Prepared:
    infer_types(ready.model)
    return replace(ready, plan=planned_anew(ready, ready.model), notes=(*ready.notes, note))


def _applies(way: Way, ready: Prepared) -> bool:
    """Whether there is anything to shift, or an upper bound."""
    graph = ready.model.graph
    shifts = way is _enlarge or any(value in ready.plan.ranges for value in shiftable(graph))
    return shifts and (way is _centre or any(node.op_type == "Clip" for node in graph.nodes))


WAYS: tuple[Way, ...] = (_centre, _enlarge, _both)
