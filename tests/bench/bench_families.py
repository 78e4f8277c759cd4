"""What a plan for all processors costs on each: predicted latency by that of float and of the own plan of a family.

    python tests/bench/bench_families.py MODEL.onnx …                 # as they are planned now
    python tests/bench/bench_families.py --search MODEL.onnx …        # first, shares of the least worst regret

A line for each model and family: the latency of the portable plan, that of the plan by the family's own table, and the
regret, the first by the second. Plans are those of `auto` with data, before anything is calibrated or searched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from onnxq.ir import load
from onnxq.planning.latency import predicted_latency
from onnxq.planning.planner import Plan, make_plan
from onnxq.planning.portable import ESTIMATED
from onnxq.stages.prepare import prepare
from onnxq.stages.prepared import Prepared
from onnxq.targets import Costs, families_of, is_estimated, load_costs
from onnxq.targets.mixed import mixed
from onnxq.targets.tables import read_target

FAMILIES = families_of("cpu")
STEPS = 10  # shares are tried in tenths


def plan_by(prepared: Prepared, costs: Costs) -> Plan:
    """Return the plan of a model by kernel times."""
    return make_plan(prepared.model, prepared.plan.recipe, with_data=True, costs=costs)


def own_latencies(prepared: Prepared) -> dict[str, float]:
    """Return the latency of each family's own plan there."""
    return {family: predicted_latency(plan_by(prepared, load_costs(family)), family) for family in FAMILIES}


def regrets(plan: Plan, own: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the latency of a plan on each family, and that by the family's own plan's."""
    found = {family: predicted_latency(plan, family) for family in FAMILIES}
    return {family: (latency, latency / own[family]) for family, latency in found.items()}


def shares_to_try() -> Iterator[dict[str, float]]:
    """List shares of families that add up to one."""
    for shares in product(range(STEPS + 1), repeat=len(FAMILIES)):
        if sum(shares) == STEPS:
            yield {name: share / STEPS for name, share in zip(FAMILIES, shares, strict=True) if share}


def best_shares(models: Sequence[Prepared], owns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the shares whose worst regret over models and families is least, of equal ones the least mean."""
    tried = []
    for shares in shares_to_try():
        costs = Costs(mixed({name: read_target(name) for name in shares}, shares))
        found = [
            1 + (regret - 1) * (ESTIMATED if is_estimated(family) else 1)
            for prepared, own in zip(models, owns, strict=True)
            for family, (_, regret) in regrets(plan_by(prepared, costs), own).items()
        ]
        tried.append((round(max(found), 3), round(float(np.mean(found)), 4), shares))
        print(f"worst {max(found):.3f}  mean {np.mean(found):.4f}  {shares}", flush=True)
    return min(tried, key=lambda one: one[:2])[2]


def main() -> None:
    """Print a line for each model and family."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--search", action="store_true")
    given = parser.parse_args()
    models = [prepare(load(path), with_data=True) for path in given.models]
    owns = [own_latencies(prepared) for prepared in models]
    if given.search:
        print(f"best {best_shares(models, owns)}")
    for path, prepared, own in zip(given.models, models, owns, strict=True):
        for family, (latency, regret) in regrets(prepared.plan, own).items():
            print(f"{path.stem:<24} {family:<10} portable {latency:.2f}  own {own[family]:.2f}  regret {regret:.3f}")


if __name__ == "__main__":
    main()
