"""The plan of a model for a copy of it: the decisions are the same, about the nodes and values of the copy.

Planning a graph of hundreds of nodes takes longer than copying or quantizing it. A search copies it dozens of times.
"""

from __future__ import annotations

from dataclasses import replace

from onnxq.ir import Graph, Model, Node, Value
from onnxq.planning.decision import Plan


def planned_state(model: Model, plan: Plan) -> tuple[Graph, int, tuple[object, ...]]:
    """Return what a plan was made from: the graph, how many changes it had, and the settings, by identity."""
    return model.graph, model.graph.revision, plan.settings


def copy_plan(plan: Plan, model: Model, copy: Model) -> Plan | None:
    """Return a plan for a copy of a model.

    Args:
        plan: Any plan.
        model: The model.
        copy: A copy that nothing was changed in, types inferred.

    Returns:
        None where the copy has to be planned: the plan is not one of this model as it is, with these settings, or was
        made without costs; or the model has bodies, whose plan depends on what samples ran.

    """
    if plan.planned is None or not can_copy_plans(model):
        return None
    (graph, revision, before), (_, now, settings) = plan.planned, planned_state(model, plan)
    same = len(before) == len(settings) and all(a is b for a, b in zip(before, settings, strict=True))
    if graph is not model.graph or revision != now or not same or len(graph.nodes) != len(copy.graph.nodes):
        return None
    return plan_of_copy(plan, model, copy)


def can_copy_plans(model: Model) -> bool:
    """Whether any plan of a model can be copied: it has no bodies, whose plan depends on what samples ran."""
    return model.is_typed and not any(node.bodies for node in model.graph.nodes)


def plan_of_copy(plan: Plan, model: Model, copy: Model) -> Plan:
    """Return a plan for a copy of a model that `can_copy_plans`, in neither of which anything was changed since."""
    nodes: dict[Node, Node] = dict(zip(model.graph.nodes, copy.graph.nodes, strict=True))

    def value(old: Value) -> Value:
        return copy.graph.values[old.name]

    made = replace(
        plan,
        decisions=[replace(decision, node=nodes[decision.node]) for decision in plan.decisions],
        outputs={nodes[node]: value(output) for node, output in plan.outputs.items()},
        others={nodes[node]: tuple(map(value, others)) for node, others in plan.others.items()},
        absorbed={nodes[clamp]: nodes[maker] for clamp, maker in plan.absorbed.items()},
        same_scale={value(moved): value(source) for moved, source in plan.same_scale.items()},
        moved={value(moved): value(source) for moved, source in plan.moved.items()},
        ranges={value(read): settings for read, settings in plan.ranges.items()},
        shared=None,
    )
    made.planned = planned_state(copy, made) if plan.planned is not None else None
    return made
