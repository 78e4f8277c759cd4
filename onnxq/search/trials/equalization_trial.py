"""Trial of equalization that costs no time: channels shifted to zero, or enlarged below a bound.

Ways are tried as `rescaling_trial.rescale` tries others. They are fitted on one half of the samples and judged on the
other, then with the halves swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from onnxq.calibration.channel_stats import ChannelStats
from onnxq.calibration.parts import calibrate_in_parts
from onnxq.calibration.stats import Stats
from onnxq.data.samples import Samples
from onnxq.ir import Model, commit
from onnxq.ir.shape_inference.types import infer_types
from onnxq.rescaling.centering import centerable_tensors, centre
from onnxq.rescaling.cross_layer import channel_axes, equalize
from onnxq.rescaling.groups import ScaleGroup
from onnxq.search.bias_correction import shift_biases
from onnxq.search.held_out import HoldoutSplit
from onnxq.search.trials.channel_trial import to_rescale
from onnxq.search.trials.rescaling_trial import CHANNEL_SAMPLES, MOST_LOST, WORTH_RESCALING
from onnxq.stages.prepared import Prepared
from onnxq.stages.replan import copy_prepared, replan

CENTRED = "shifted channels of {} tensors around zero, at no cost"
ENLARGED = "stretched channels of {} tensors below an upper bound, at no cost"
EQUALIZED = "divided channels of {} of them, at no cost"
LEAST_GAIN = 0.2  # dB, estimated for one tensor
LEAST_ON_HALF = 0.5  # dB, on the first half
Transform = Callable[[Prepared, Stats], Prepared]


def equalize_if_it_helps(prepared: Prepared, split: HoldoutSplit) -> Prepared:
    """Even channels out in the way that gains most on the average of both halves, if that is much and neither loses."""
    if split.samples.made_up or split.halves is None or not to_rescale(prepared)[0]:
        return prepared
    ways = [way for way in TRANSFORMS if _applies(way, prepared)]
    gains: dict[Transform, list[float]] = {way: [] for way in ways}
    for half, least in enumerate((LEAST_ON_HALF, -MOST_LOST)) if ways else ():
        for way, gained in _gains(prepared, split, half, list(gains), least).items():
            gains[way].append(gained)
            if gained < least:
                del gains[way]
        if not gains:
            return prepared
    means = {way: sum(gained) / 2 for way, gained in gains.items()}
    best = max(means, key=lambda way: means[way], default=None)
    if best is None or means[best] < WORTH_RESCALING:
        return prepared
    return best(prepared, _channels(prepared, split.few_of_all(CHANNEL_SAMPLES)))


def _gains(
    prepared: Prepared, split: HoldoutSplit, half: int, ways: Sequence[Transform], least: float
) -> dict[Transform, float]:
    """Return what each way gains in dB, fitted on a half and judged on the other; 0 for one that changes nothing."""
    trial, judge = split.channel_trial(prepared, half), split.swapped_evaluator if half else split.judge

    def variant(way: Transform) -> Model | None:
        stats = trial.stats.copy()
        changed = way(copy_prepared(prepared), stats)
        return None if changed.transforms == prepared.transforms else trial.variant(changed, stats)

    gains = judge.sqnr_gains(
        partial(trial.model_before, prepared), [partial(variant, way) for way in ways], least=least
    )
    return {way: gained or 0.0 for way, gained in zip(ways, gains, strict=True)}


def applicable(prepared: Prepared) -> int:
    """Return how many ways there are to even channels out."""
    return sum(_applies(way, prepared) for way in TRANSFORMS) if to_rescale(prepared)[0] else 0


def _channels(prepared: Prepared, samples: Samples) -> Stats:
    """Measure the channels of what is shifted and of what Conv read."""
    values = centerable_tensors(prepared.model.graph)
    axes = channel_axes(to_rescale(prepared)[0]) | {value.name: 1 for value in values}
    taken = [prepared.model.graph.values[name] for name in axes]
    return calibrate_in_parts(prepared.model, taken, samples, kinds=lambda name: (ChannelStats(axes[name]),))


def _centre(prepared: Prepared, measured: Stats) -> Prepared:
    """Shift channels around zero; then bring those to the same size, which pays more than it did before."""
    values = centerable_tensors(prepared.model.graph)
    found = centre(values, measured)
    shift_biases(prepared.model, found.biases)
    found.update(measured)
    prepared = _changed(prepared, CENTRED.format(len(found.values)))

    def among_them(group: ScaleGroup) -> bool:
        return not group.limits and not group.axes.keys().isdisjoint(values)

    return _divide(prepared, measured, EQUALIZED, among_them)


def _enlarge(prepared: Prepared, measured: Stats) -> Prepared:
    return _divide(prepared, measured, ENLARGED, lambda group: bool(group.limits))


def _both(prepared: Prepared, measured: Stats) -> Prepared:
    return _centre(_enlarge(prepared, measured), measured)


def _divide(prepared: Prepared, measured: Stats, note: str, wanted: Callable[[ScaleGroup], bool]) -> Prepared:
    nodes, stored = to_rescale(prepared)
    made = equalize(nodes, measured, stored=stored, wanted=wanted, least_gain=LEAST_GAIN)
    commit(made.patches)
    made.update(measured)
    count = sum(len(change.divisors) for change in made.changes)
    return _changed(prepared, note.format(count)) if count else prepared


def _changed(prepared: Prepared, note: str) -> Prepared:
    infer_types(prepared.model)
    notes = (*prepared.notes, note)
    return replan(replace(prepared, notes=notes, transforms=prepared.transforms + 1))


def _applies(way: Transform, prepared: Prepared) -> bool:
    """Whether there is anything to shift, or an upper bound."""
    graph = prepared.model.graph
    shifts = way is _enlarge or any(value in prepared.plan.ranges for value in centerable_tensors(graph))
    return shifts and (way is _centre or any(node.op_type == "Clip" for node in graph.nodes))


TRANSFORMS: tuple[Transform, ...] = (_centre, _enlarge, _both)
