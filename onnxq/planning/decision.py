"""The parts of a plan: a decision for every node, and its consequences for values.

Tests: `tests/planning/test_copy_plan.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnxq.ir import Graph, Node, Value
from onnxq.ops.forms.family import QuantizedForm
from onnxq.ops.forms.scheme import Scheme, SchemeName
from onnxq.planning.outlier_channels import OutlierClip
from onnxq.planning.recipe import Recipe
from onnxq.planning.shared_decisions import SharedDecisions
from onnxq.targets import Costs, load_costs


@dataclass(frozen=True)
class Decision:
    """The decision about one node.

    Attributes:
        node: The node.
        scheme: Name of the scheme it gets, or None where it stays as it is.
        reason: What it becomes, or the sentence that says why it stays float.
        settings: The scheme in full, where there is one.
        form: What the family promised, where there is one.

    """

    node: Node
    scheme: SchemeName | None
    reason: str
    settings: Scheme | None = None
    form: QuantizedForm | None = None


@dataclass(frozen=True)
class Override:
    """A search's choice for one node.

    Attributes:
        scheme: The only scheme to try; `float` for none.
        reason: The sentence that says why.
        settings: Fields of the scheme to set besides.

    """

    scheme: SchemeName
    reason: str
    settings: tuple[tuple[str, Any], ...] = ()


FOR_SIZE = "to meet the size limit"  # the reason of a choice that no accuracy asked for
FOR_LIMIT = "by what each weight loses alone"  # the reason of a weight's bits in blocks
Choices = Mapping[str, Override]  # by the name of a node's first output


@dataclass
class Plan:
    """A decision for every node, and what static quantization needs to know about values.

    Attributes:
        recipe: What was asked for.
        choices: What a search settled, where there was one.
        with_data: Whether there are samples to calibrate with.
        costs: Kernel times that decided.
        decisions: One for each node, bodies included, in graph order.
        outputs: Values that are read through a Q/DQ pair by everybody, by the node whose output they quantize. Behind
            an absorbed Relu or Clip, the value is the clamp's output and the node the Conv before it.
        others: What else such a node gives that is read so: the further outputs of a Split.
        absorbed: Clamps that go, because the saturation of their output's codes does what they do.
        same_scale: Values that share the scale of another: output of a node that moves values → its input.
        moved: Calibrated values that have the range of another, as a scale of their own with the same number: what
            operators in float only move → the calibrated value that it comes from.
        ranges: The scheme settings that choose each calibrated value's range.
        clipped: Values that are clipped only to add outliers in float (`rescaling/outlier_split.py`), by name.
        conversions: What conversions between float and 8 bit take by these kernel times, in nanoseconds; 0 where they
            decided nothing.
        keeps_opset: Whether the model cannot be converted, so that only forms count that its opset has.
        stores_only: Whether what is left to `auto` computes in float with weights stored in 8 bit.
        planned: What it was made from; see `onnxq.planning.copy_plan`. None where costs did not count.
        shared: What it has in common with other plans of the same graph; None before it was made.

    """

    recipe: Recipe
    choices: Choices = field(default_factory=dict)
    with_data: bool = True
    costs: Costs = field(default_factory=load_costs)
    decisions: list[Decision] = field(default_factory=list)
    outputs: dict[Node, Value] = field(default_factory=dict)
    others: dict[Node, tuple[Value, ...]] = field(default_factory=dict)
    absorbed: dict[Node, Node] = field(default_factory=dict)
    same_scale: dict[Value, Value] = field(default_factory=dict)
    moved: dict[Value, Value] = field(default_factory=dict)
    ranges: dict[Value, Scheme] = field(default_factory=dict)
    clipped: Mapping[str, OutlierClip] = field(default_factory=dict)
    conversions: float = 0.0
    keeps_opset: bool = False
    stores_only: bool = False
    planned: tuple[Graph, int, tuple[object, ...]] | None = field(default=None, compare=False, repr=False)
    shared: SharedDecisions | None = field(default=None, compare=False, repr=False)

    @property
    def settings(self) -> tuple[object, ...]:
        """All that is settled before a node is decided about."""
        return self.recipe, self.choices, self.with_data, self.costs, self.clipped, self.keeps_opset, self.stores_only

    def undecided(self, recipe: Recipe) -> Plan:
        """Return a plan of the same settings, but for the recipe, without decisions."""
        plan = Plan(recipe, self.choices, self.with_data, self.costs, clipped=self.clipped)
        plan.keeps_opset, plan.stores_only, plan.shared = self.keeps_opset, self.stores_only, self.shared
        return plan

    def quantized(self) -> list[Decision]:
        """The decisions that change something."""
        return [decision for decision in self.decisions if decision.scheme]

    def pairs_behind(self, node: Node) -> tuple[Value, ...]:
        """The values that everybody reads through a Q/DQ pair because of a node."""
        return (self.outputs[node], *self.others.get(node, ())) if node in self.outputs else ()

    @cached_property
    def paired(self) -> frozenset[Value]:
        """The values that everybody reads through a Q/DQ pair, once all is decided."""
        return frozenset(value for node in self.outputs for value in self.pairs_behind(node))

    @cached_property
    def in_integers(self) -> frozenset[Node]:
        """The nodes that compute in 8 bit, once all is decided."""
        return frozenset(d.node for d in self.decisions if d.scheme in ("static-int8", "dynamic-int8"))

    def counts(self) -> dict[str, int]:
        """Number of nodes by scheme, `float` for those that stay."""
        return dict(Counter(decision.scheme or "float" for decision in self.decisions))

    def reasons(self) -> dict[str, int]:
        """Number of nodes that stay float by reason, the most frequent first."""
        return dict(Counter(d.reason for d in self.decisions if d.scheme is None).most_common())

    def scale_owner(self, value: Value) -> Value:
        """The value whose range decides the scale of `value`."""
        while value in self.same_scale:
            value = self.same_scale[value]
        return value

    def range_owner(self, value: Value) -> Value:
        """The value whose statistics choose the range of a calibrated value."""
        return self.moved.get(value, value)

    def followed(self) -> frozenset[Value]:
        """The values whose range or scale others have."""
        return frozenset([*self.same_scale.values(), *self.moved.values()])

    @property
    def range_methods(self) -> frozenset[str]:
        """How ranges of calibrated values are chosen."""
        return frozenset(settings.ranges for settings in self.ranges.values())

    def range_settings(self, value: Value) -> Scheme:
        """The settings that choose the range of a calibrated value: those of its first quantized reader or maker."""
        if value in self.ranges:
            return self.ranges[value]
        return next(settings for other, settings in self.ranges.items() if self.scale_owner(other) is value)

    def calibrated(self) -> list[Value]:
        """The values whose statistics the rewrite needs, in graph order."""
        return list(dict.fromkeys(self.scale_owner(value) for value in self.ranges))

    @property
    def opset(self) -> int:
        """The operator set version that the promised forms need."""
        return max((decision.form.opset for decision in self.decisions if decision.form), default=1)


def node_key(node: Node) -> str:
    """Name a node for `Choices`: by its first output, for nodes may lack a name or share it."""
    return next((value.name for value in node.makes), "")
