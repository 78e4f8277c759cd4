"""One sample, node by node, twice: each node on what onnxruntime gave it, and the whole model by itself.

Tests: `tests/verification/test_engines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onnxq.errors import OnnxqError
from onnxq.evaluator import Evaluator, Run, Step, arithmetic
from onnxq.ir import Value
from onnxq.ir.schemas import RANDOM
from onnxq.verification.engines.conditioning import differ_in_the_last_bits, is_in_the_last_bits
from onnxq.verification.engines.origin import holds
from onnxq.verification.engines.result import Disagreement, Parting
from onnxq.verification.engines.tensors import InnerTensors
from onnxq.verification.engines.tolerance import LARGEST_NUMBER, MOST_TIES, Gap, gap, is_float

# Operators that give codes: they round, and what lies half-way may go either side
QUANTIZERS = frozenset(("QuantizeLinear", "DynamicQuantizeLinear", "QGemm"))
# Operators that turn a small difference into a whole step although their output is float
STEPS = frozenset(("Round", "Floor", "Ceil", "Sign", "TopK", "DynamicQuantizeLinear", "Mod"))
# Sums, of which what cancels has no more digits than what it was added up from
SUMS = frozenset(("Add", "Sub", "Sum", "ReduceMean", "AveragePool", "GlobalAveragePool"))
CANCELLED = 8  # times what the largest input is rounded by
# Largest change of a MatMulNBits by int8 inputs, relative to the largest magnitude: 0.7 % at most was seen with 4 bit
# and 8 bit. A step of 8 bit is as much: what a body gives whose codes tip over
INSIDE = 0.02


class NodeByNode:
    """Looks at samples one node at a time and remembers what it finds.

    Attributes:
        nodes: How many nodes were compared, those of the first sample.
        ties, codes: Codes that differ by one on the same inputs, of how many.
        flipped: Codes that differ in whole runs.
        culprits: Nodes that disagree, each once.
        parting: Where the whole runs part first.
        unknown: Label of each node that the evaluator cannot run, and why.
        random: Labels of the nodes that are random.
        blurred: Labels of the nodes that turn the last bits of what they read into larger differences, and words.
        of_nan: The first node that reads NaN, of which engines make something else, and where it reads it.

    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.nodes = self.ties = self.codes = self.flipped = 0
        self.culprits: dict[str, Disagreement] = {}
        self.parting: Parting | None = None
        self.unknown: dict[str, str] = {}
        self.random: list[str] = []
        self.blurred: dict[str, str] = {}
        self.of_nan: tuple[str, str] | None = None
        self._seen: set[str] = set()

    def look(self, feeds: Mapping[str, np.ndarray], sample: int) -> dict[str, Any]:
        """Look at one sample.

        Returns:
            The outputs of the graph as the evaluator computes them by itself.

        Raises:
            SessionError: onnxruntime does not show the tensors inside the model.

        """
        theirs = InnerTensors(self._evaluator, feeds)
        outputs = self._evaluator.model.graph.outputs
        with arithmetic():
            forced, own = self._evaluator.begin(feeds), self._evaluator.begin(feeds)
            own.keep = set(outputs)
            for index, step in enumerate(self._evaluator.steps):
                self._step(step, theirs.of(index), forced, own, sample)
        return {value.name: own.values[value] for value in outputs}

    def _step(self, step: Step, theirs: Mapping[Value, Any], forced: Run, own: Run, sample: int) -> None:
        given = {value: theirs[value] for value in step.node.makes if value in theirs}
        if self._compute(step, forced, own):
            for value, array in given.items():
                self._compare_node(step, value, (array, forced.values[value]), forced, sample)
                self._compare_runs(step, value, (array, own.values[value]), (forced, own), sample)
            if given and step.node.display_name not in self._seen:
                self._seen.add(step.node.display_name)
                self.nodes += 1
        else:
            own.values.update(given)
        forced.values.update(given)
        forced.release(step)
        own.release(step)

    def _compute(self, step: Step, forced: Run, own: Run) -> bool:
        """Run a node in the evaluator; False where it cannot, or where two runs would differ anyway."""
        node = step.node
        if node.op_type in RANDOM and not node.domain:
            if node.display_name not in self.random:
                self.random.append(node.display_name)
            return False
        try:
            forced.compute(step)
            own.compute(step)
        except OnnxqError as error:
            self.unknown.setdefault(node.display_name, error.message)
            return False
        return True

    def _compare_node(self, step: Step, value: Value, pair: tuple[Any, Any], forced: Run, sample: int) -> None:
        found = gap(*pair)
        node = step.node
        if _makes_codes(step, pair[0]):
            self.codes += found.elements
            if found.one_step and found.differing <= max(1, MOST_TIES * found.elements):
                self.ties += found.differing
                return
        if found.within or node.display_name in self.culprits or (_rounds_inside(step) and found.relative <= INSIDE):
            return
        inputs = [forced.values.get(read) for read in node.reads]
        if node.op_type in SUMS and found.max_abs <= CANCELLED * _rounded_by(inputs):
            return
        operator = step.node.operator
        undefined = [read for read in node.reads if holds(forced.values.get(read), np.isnan)]
        if undefined:
            self.of_nan = self.of_nan or (f"{operator} node {node.display_name}", undefined[0].name)
            return
        smooth = is_float(pair[0]) and node.op_type not in STEPS and not node.bodies
        if smooth and not found.problem and is_in_the_last_bits(step, value, forced, found.max_abs):
            self.blurred[node.display_name] = (
                f"{operator} node {node.display_name} makes differences of the last bits of what it reads"
            )
            return
        sentence = (
            f"{operator} node {node.display_name} {_describe(value, found)} in onnxruntime and the reference evaluator"
        )
        self.culprits[node.display_name] = Disagreement(node.display_name, operator, value.name, sample, sentence)

    def _compare_runs(
        self, step: Step, value: Value, pair: tuple[Any, Any], runs: tuple[Run, Run], sample: int
    ) -> None:
        is_codes = _makes_codes(step, pair[0])
        if self.parting is not None and not is_codes:
            return
        found = gap(*pair)
        if is_codes:
            self.flipped += found.differing
        if found.within or self.parting is not None:
            return
        is_step = not is_float(pair[0]) or step.node.op_type in STEPS or _rounds_inside(step)
        is_step = is_step or step.node.display_name in self.blurred or differ_in_the_last_bits(step, *runs)
        share = found.differing / found.elements if found.elements else 1.0
        operator = step.node.operator
        self.parting = Parting(step.node.display_name, operator, value.name, sample, found.max_abs, share, is_step)

    def notes(self) -> list[str]:
        """Say what could not be checked."""
        found = [f"{why}; its result is taken from onnxruntime" for why in self.unknown.values()]
        found += self.blurred.values()
        if self.random:
            found.append(f"random results are not compared: {', '.join(self.random)}")
        return found


def _rounds_inside(step: Step) -> bool:
    """Whether the node allows onnxruntime to round its input as the processor suggests, or rounds in its bodies."""
    node = step.node
    if node.op_type == "MatMulNBits":
        return bool(node.attribute("accuracy_level", 0) > 1)
    inner = (each for bodies in node.bodies.values() for body in bodies for each in body.walk())
    return any(each.op_type in QUANTIZERS or each.op_type.startswith("QLinear") for each in inner)


def _rounded_by(inputs: Iterable[Any]) -> float:
    """Return what the largest ordinary number among the inputs is rounded by."""
    found = 0.0
    for array in inputs:
        if is_float(array):
            magnitudes = np.abs(array[np.abs(array) <= LARGEST_NUMBER])
            found = max(found, float(magnitudes.max(initial=0.0)) * float(np.finfo(array.dtype).eps))
    return found


def _describe(value: Value, found: Gap) -> str:
    if found.problem:
        return f"makes tensor '{value.name}', which {found.problem}"
    share = f"{found.differing} of {found.elements} elements"
    return f"differs in tensor '{value.name}' by up to {found.max_abs:.4g} ({share}) on the same inputs"


def _makes_codes(step: Step, array: Any) -> bool:
    """Whether an output of the node holds rounded codes of at most 16 bits."""
    node = step.node
    quantizes = node.op_type in QUANTIZERS or node.op_type.startswith("QLinear")
    return quantizes and isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.dtype.itemsize <= 2
