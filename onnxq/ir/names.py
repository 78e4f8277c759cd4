"""Names that are taken, and fresh ones.

Tests: `tests/ir/test_graph.py`.
"""

from __future__ import annotations

LONGEST = 64  # characters of a name that is made: tf2onnx joins names of TensorFlow to hundreds, which readers repeat
HEAD = 36  # of them from the front; the rest from the end, which says what the value is


class Names:
    """Every tensor and node name of a model, so that fresh ones collide with none in any scope."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Note a name that the model has."""
        self._taken.add(name)

    def fresh(self, hint: str) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, …: the first that is free, in constant time on average.

        The middle of a long hint is left out.
        """
        if len(hint) > LONGEST:
            hint = f"{hint[:HEAD]}..{hint[HEAD + 2 - LONGEST :]}"
        if hint and hint not in self._taken:
            self._taken.add(hint)
            return hint
        count = self._next.get(hint, 0)
        while True:
            count += 1
            name = f"{hint}_{count}"
            if name not in self._taken:
                break
        self._next[hint] = count
        self._taken.add(name)
        return name
