"""Find masks that do not fit the token ids: padding that they show as text, and text that they hide.

Tests: `tests/data/test_text_padding.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from onnxq.data.text.table_rows import table_rows
from onnxq.data.validation import Sample
from onnxq.ir import Model
from onnxq.warning import WarningLine

CODE = "unmasked-padding"
LEAST_RUN = 3  # equal token ids at the end of a row: texts may end in two of a kind
FEWEST_ROWS = 4
SHARE = 0.5  # of all rows
LEAST_TABLE = 8  # rows of a table of words: those of token types have two
HIDDEN, MOST_HIDDEN = "hidden-tokens", 3  # different ids that a mask hides: padding is one, or a few


def padding_warnings(model: Model, samples: Sequence[Sample]) -> Iterator[WarningLine]:
    """Yield which inputs of token ids hold padding where the mask says that there is text.

    Args:
        model: The float model.
        samples: A few samples, in memory.

    """
    if not samples:
        return
    for name, array in samples[0].items():
        if array.ndim != 2 or array.dtype.kind not in "iu" or (table_rows(model, name) or 0) < LEAST_TABLE:
            continue
        for mask in (other for other in samples[0] if other.lower().endswith("mask")):
            pairs = [(sample[name], sample[mask]) for sample in samples]
            if any(ids.shape != shown.shape for ids, shown in pairs):
                continue
            found = _padding([(row, seen) for ids, shown in pairs for row, seen in zip(ids, shown, strict=True)])
            if found is not None:
                message = f"rows of '{name}' are filled up with {found}, and '{mask}' is not 0 there"
                yield WarningLine(CODE, message, f"Give 0 in '{mask}' where '{name}' is padded, as the tokenizer does.")
                continue
            hidden = _hidden(pairs)
            if hidden > MOST_HIDDEN:
                message = f"'{mask}' hides {hidden} different numbers of '{name}', and padding is one number"
                yield WarningLine(HIDDEN, message, "Give 1 where there is text, and the mask that belongs to the row.")


def _hidden(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Return how many different token ids a mask of 0 and 1 hides; 0 where it is no such mask."""
    if any(shown.size and not ((shown == 0) | (shown == 1)).all() for _, shown in pairs):
        return 0
    hidden, seen = (np.unique(np.concatenate([ids[shown == kind] for ids, shown in pairs])) for kind in (0, 1))
    return len(hidden) if len(seen) > MOST_HIDDEN else 0  # a mask of padding holds 1 there, or 0 everywhere


def _padding(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> int | None:
    """Return the token id that rows are filled up with though the mask shows it; None where there is none.

    It ends half of all rows, for different lengths, and stands nowhere else. Other repeats, such as those of
    nucleotides, are of ids that stand elsewhere, too.
    """
    for turn in (slice(None, None, -1), slice(None)):  # padded at the end, or at the start
        runs: Counter[int] = Counter()
        lengths: dict[int, set[int]] = {}
        inside: set[int] = set()
        for row, shown in rows:
            ids = row[turn]
            others = np.flatnonzero(ids != ids[:1])
            run = int(others[0]) if len(others) else len(ids)
            inside.update(ids[run:].tolist())
            if run >= LEAST_RUN and len(others) and shown[turn][:run].all():
                runs[int(ids[0])] += 1
                lengths.setdefault(int(ids[0]), set()).add(run)
        for found, count in runs.most_common(1):
            enough = count >= FEWEST_ROWS and count >= SHARE * len(rows)
            if enough and len(lengths[found]) > 1 and found not in inside:
                return found
    return None
