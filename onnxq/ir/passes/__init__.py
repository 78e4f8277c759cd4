"""Normalising passes, one file each: they change how a model is written, never what it computes.

Passes that change how much there is to compute are in `simplify`.
"""

from collections.abc import Collection

from onnxq.ir.model import Model
from onnxq.ir.pass_manager import NORMALISE, run_passes, select_passes

__all__ = ["normalise"]


def normalise(model: Model, needs: Collection[str] | None = None) -> list[str]:
    """Run the passes that are needed on a model, in place.

    Args:
        model: The model. Its graph may be another object afterwards, and types have to be inferred again.
        needs: Names of passes; None for all of them.

    Returns:
        What was done, a sentence for each pass that changed something.

    Raises:
        ModelError: The model cannot be brought into the form that a pass is for.
        InvalidResult: A pass broke the graph.
        ValueError: `needs` names a pass that does not exist.

    """
    return [*run_passes(model, select_passes(NORMALISE, needs)).notes]
