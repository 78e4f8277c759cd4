"""What a plan for all processors costs on each: predicted latency by that of float and of the own plan of a family.

    python tests/bench/bench_families.py MODEL.onnx …                 # shares of onnxq/targets/cpu.toml
    python tests/bench/bench_families.py --search MODEL.onnx …        # shares with the least regret in the worst case

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
from onnxq.quant.latency import predicted_latency
from onnxq.quant.plan import Plan, make_plan
from onnxq.steps import Prepared, prepare
from onnxq.targets import Costs, load_costs
from onnxq.targets.mixed import mixed
from onnxq.targets.tables import read_target

FAMILIES = ("cpu-avx2", "cpu-vnni", "cpu-arm64")
STEPS = 10  # shares are tried in tenths


def plan_by(ready: Prepared, costs: Costs) -> Plan:
    """Return the plan of a model by kernel times."""
    return make_plan(ready.model, ready.plan.recipe, with_data=True, costs=costs)


def own_latencies(ready: Prepared) -> dict[str, float]:
    """Return the latency of each family's own plan there."""
    return {family: predicted_latency(plan_by(ready, load_costs(family)), family) for family in FAMILIES}


def regrets(ready: Prepared, own: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the latency of the portable plan on each family, and that by the family's own plan's."""
    plan = plan_by(ready, Costs(mixed({name: read_target(name) for name in shares}, shares)))
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
        found = [
            pair[1] for ready, own in zip(models, owns, strict=True) for pair in regrets(ready, own, shares).values()
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
    owns = [own_latencies(ready) for ready in models]
    shares = best_shares(models, owns) if given.search else read_target("cpu")["mix"]
    print(f"shares {shares}")
    for path, ready, own in zip(given.models, models, owns, strict=True):
        for family, (latency, regret) in regrets(ready, own, shares).items():
            print(f"{path.stem:<24} {family:<10} portable {latency:.2f}  own {own[family]:.2f}  regret {regret:.3f}")


if __name__ == "__main__":
    main()
