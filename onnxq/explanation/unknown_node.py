"""The error for a node that a model does not have, with those that could have been meant.

Tests: `tests/cli/test_cli_explain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from onnxq.errors import ModelError
from onnxq.text import did_you_mean

MOST_NAMES = 6
ALL = "`onnxq plan` lists all nodes."


def unknown_node(label: str, name: str, operators: Mapping[str, str]) -> ModelError:
    """Make the error for a name that no node and no tensor has.

    A name such as `Conv_3` is what other programs call the nodes of an operator, whatever names they have in the file.

    Args:
        label: Of the model.
        name: The unknown name.
        operators: The operator of each node by its name, in the order of the graph; empty for names of tensors.

    """
    message = f"no node of {label} is called '{name}' or makes a tensor of that name"
    stem = re.sub(r"[\W_]*\d*$", "", name).casefold()
    same = [one for one, operator in operators.items() if operator and operator.casefold() == stem]
    if not same:
        return ModelError(message, did_you_mean(name, operators, most=3, cutoff=0.5) or ALL)
    shown = ", ".join(f"'{one}'" for one in same[:MOST_NAMES])
    rest = f" and {len(same) - MOST_NAMES} more" if len(same) > MOST_NAMES else ""
    kind = operators[same[0]]
    are = f"node is {shown}" if len(same) == 1 else f"nodes are {shown}{rest}"
    return ModelError(message, f"Its {kind} {are}. {ALL}")
