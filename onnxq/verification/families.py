"""A quantized model on each family of processors: its error there, and its latency.

Integer products are exact on most processors, so one measurement holds for all of those. If products of the very file
could saturate, onnxruntime's optimised graph of it runs in the evaluator with such processors' arithmetic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator
from onnxq.ir import Model, parse
from onnxq.ir.storage.temporary import temporary_folder
from onnxq.ops.quantized import Arithmetic, losses_noted
from onnxq.planning.latency import predicted_latency
from onnxq.planning.planner import Plan
from onnxq.planning.recipe import parse_recipe
from onnxq.progress import working
from onnxq.runtime.ort_session import SessionError, Settings, load_native
from onnxq.runtime.session import ModelSource, open_session, run_session
from onnxq.targets import DEFAULT, families_of
from onnxq.targets.host import host_family, host_saturates
from onnxq.targets.tables import table_name
from onnxq.targets.target import load_target
from onnxq.verification.error_stats import ANY_AXIS, Difference
from onnxq.verification.int8_saturation import read_saturation
from onnxq.verification.output_records import with_sqnr

LATENCIES = "onnxq_latencies"  # metadata: predicted latency in that of float, by family
# Fusions of float operators into those of com.microsoft, which the evaluator has no kernels for
FLOAT_FUSIONS = (
    "AttentionFusion",
    "BiasGeluFusion",
    "BiasSoftmaxFusion",
    "ConvActivationFusion",
    "ConvAddActivationFusion",
    "EmbedLayerNormFusion",
    "FastGeluFusion",
    "GeluFusionL2",
    "GemmActivationFusion",
    "LayerNormFusionL2",
    "MatMulActivationFusion",
    "MatMulScaleFusion",
    "MatmulTransposeFusion",
    "QuickGeluFusion",
    "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion",
)
SAMPLES = 4  # that are evaluated where products could saturate


@dataclass(frozen=True)
class FamilyFigures:
    """Figures of a quantized model on one family of processors.

    Attributes:
        family: The target of that name.
        sqnr: Worst SQNR of all outputs there, in dB; None where it could not be evaluated.
        latency: Predicted latency in that of float; None where no plan is known.
        saturates: Whether integer products that could saturate there were computed so.
        here: Whether the processor at hand is of the family.

    """

    family: str
    sqnr: float | None
    latency: float | None = None
    saturates: bool = False
    here: bool = False


def shown_families(target: str) -> tuple[str, ...]:
    """List the families that figures of a target's models are shown for; none where kernel times are unknown."""
    name, portable = table_name(target), families_of(DEFAULT)
    if name == DEFAULT or name in portable:
        return portable
    return families_of(name) if load_target(name).timed else ()


def recorded_target(model: Model) -> str:
    """Return the target that a model was written for, by its metadata; the default one where it does not say."""
    recipe = model.metadata.get("onnxq_recipe")
    try:
        return DEFAULT if recipe is None else parse_recipe(recipe, "metadata").scheme.target
    except OnnxqError:
        return DEFAULT


def record_latencies(model: Model, latencies: Mapping[str, float]) -> None:
    """Write predicted latencies, by family in that of float, into the metadata of a model: as many bytes for any."""
    if latencies:
        pairs = ", ".join(f"{json.dumps(name)}: {time:.2f}" for name, time in latencies.items())
        model.metadata[LATENCIES] = f"{{{pairs}}}"


def recorded_latencies(model: Model) -> dict[str, float]:
    """Return the latencies that were predicted when a model was written, by family."""
    try:
        found = json.loads(model.metadata.get(LATENCIES, "{}"))
    except (ValueError, RecursionError):
        return {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {name: float(time) for name, time in numbers if isinstance(time, int | float)}


def predicted_latencies(plan: Plan) -> dict[str, float]:
    """Return the predicted latency of a plan in that of float, for each family of its target.

    Args:
        plan: A finished plan, before it is carried out.

    """
    return {name: predicted_latency(plan, name) for name in shown_families(plan.recipe.scheme.target)}


@dataclass(frozen=True)
class SaturatingFamilies:
    """Families of processors on which integer products of a model saturate.

    Attributes:
        families: By family of a target, whether they do there; empty for a large model.
        here: Whether they do on the processor at hand.

    """

    families: Mapping[str, bool]
    here: bool

    @classmethod
    def of(cls, target: str, quantized: Model) -> SaturatingFamilies:
        """Find out for the families of a target."""
        shown = shown_families(target) if quantized.residency.copies else ()
        could = bool(shown) and bool(read_saturation(quantized))
        return cls({name: could and load_target(name).saturates for name in shown}, could and host_saturates())


def family_figures(
    saturating: SaturatingFamilies, measured: float, lost: float | None, latencies: Mapping[str, float]
) -> tuple[FamilyFigures, ...]:
    """Return accuracy and latency of a quantized model on each family of a target; nothing for a large one.

    Args:
        saturating: Where its products saturate.
        measured: Worst SQNR of all outputs, as measured in onnxruntime on the processor at hand, in dB.
        lost: What saturation takes off it; see `saturation_loss`.
        latencies: Predicted ones by family.

    """
    made = []
    for name, there in saturating.families.items():
        sqnr: float | None = measured
        if there != saturating.here:
            sqnr = None if lost is None else measured - lost if there else measured + lost
        made.append(FamilyFigures(name, sqnr, latencies.get(name), there, name == host_family()))
    return tuple(made)


def saturation_loss(
    saturating: SaturatingFamilies,
    float_model: ModelSource,
    quantized: Model,
    samples: Iterable[Mapping[str, np.ndarray]],
) -> float | None:
    """Return how many dB saturation takes off the worst output of a model.

    Args:
        saturating: Where its products saturate.
        float_model: The float model.
        quantized: The quantized model.
        samples: `{input name: array}`; the first few are run, if the processor at hand differs from a family.

    Returns:
        dB, 0 where the processor at hand does as all families do; None where it is unknown, or is no finite number.

    """
    with working("families"):
        if all(there == saturating.here for there in saturating.families.values()):
            return 0.0
        encoded = quantized.serialize()
        with losses_noted() as noted:
            (saturated,) = evaluated_sqnrs(float_model, encoded, samples, ["saturating"])
        (exact,) = evaluated_sqnrs(float_model, encoded, samples, ["exact"]) if noted else [saturated]
    if exact is None or saturated is None:
        return None
    if exact == saturated:
        return 0.0
    return exact - saturated if math.isfinite(exact) and math.isfinite(saturated) else None


def evaluated_sqnrs(
    float_model: ModelSource,
    quantized: bytes,
    samples: Iterable[Mapping[str, np.ndarray]],
    arithmetics: Sequence[Arithmetic],
) -> list[float | None]:
    """Return the worst SQNR of all outputs with the arithmetic of processors, in dB, for each that is asked for.

    Args:
        float_model: The float model.
        quantized: The quantized model.
        samples: `{input name: array}`; the first few are run.
        arithmetics: Of integer products.

    Returns:
        None for each where onnxruntime makes operators of the model that the evaluator does not know. Labels do not
        count if there are other outputs.

    """
    differences: list[list[Difference]] = [[] for _ in arithmetics]
    try:
        reference, optimized = open_session(float_model, threads=1), _optimized(quantized)
        evaluators = [Evaluator(optimized, arithmetic) for arithmetic in arithmetics]
        for sample in islice(iter(samples), SAMPLES):
            expected = run_session(reference, None, dict(sample))
            for evaluator, sums in zip(evaluators, differences, strict=True):
                sums += [Difference(lengths=ANY_AXIS) for _ in expected[len(sums) :]]
                got = evaluator.run(dict(sample)).values()
                for difference, one, other in zip(sums, expected, got, strict=True):
                    difference.add(one, other)
    except (OnnxqError, SessionError):
        return [None] * len(arithmetics)
    return [_worst(sums) for sums in differences]


def _worst(sums: Sequence[Difference]) -> float | None:
    """Return the SQNR of the worst output of which it means something; None without samples."""
    counts = with_sqnr([each.dtype for each in sums])
    return min((each.sqnr for each, counted in zip(sums, counts, strict=True) if counted), default=None)


def _optimized(quantized: bytes) -> Model:
    """Return the graph that onnxruntime makes of a model, with its integer kernels."""
    with temporary_folder() as folder:
        path = folder / "optimized.onnx"
        load_native(quantized, Settings("extended", save_to=str(path), without=FLOAT_FUSIONS))
        return parse(path.read_bytes())
