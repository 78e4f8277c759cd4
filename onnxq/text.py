"""Format figures and names for people."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TypeVar

Named = TypeVar("Named", bound=str | PathLike[str])

FLOAT = "float"
ALIKE = str.maketrans({"→": "->", "×": "x", "…": "...", "·": "*", "−": "-", "–": "-", "\u00a0": " "})
VARIABLE = re.compile(r"\$\{?[A-Za-z_]")  # of a shell
UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}


def decibels(value: float) -> str:
    """Write an SQNR for people."""
    if math.isinf(value):
        return "equal" if value > 0 else "none"
    return f"{round(value, 1) + 0.0:.1f} dB"  # -0.04 is 0.0


def noise(value: float) -> str:
    """Write for people what a layer adds or inherits, as an SQNR; nothing at all is exact."""
    return "exact" if value == math.inf else decibels(value)


def size(count: float) -> str:
    """Write a number of bytes for people, in decimal units as file managers do."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 999.95:  # what rounds to 1000.0 is 1.0 of the next
            return f"{count:.1f} {unit}"
    count /= 1000
    return f"{count:.2f} GB"


def parse_size(text: str) -> int | None:
    """Read a number of bytes that people wrote with a unit, such as `10 MB` or `10mb`; None where it is none."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?({'|'.join(UNITS)})", text, re.ASCII | re.IGNORECASE)
    bytes_of = {unit.lower(): count for unit, count in UNITS.items()}
    return None if found is None else int(float(found[1]) * bytes_of[found[2].lower()])


def size_change(before: int, after: int) -> str:
    """Say how much smaller or larger a file became: `3.7× smaller`."""
    before, after = max(before, 1), max(after, 1)
    if after <= before:
        return _times(before / after, "smaller", "the same size")
    return _times(after / before, "larger", "the same size")


def speed_change(ratio: float) -> str:
    """Say how much faster or slower something became: `1.3× faster`.

    Args:
        ratio: Its time as a share of the time before.

    """
    if ratio <= 1:
        return _times(1 / max(ratio, 1e-9), "faster", "as fast")
    return _times(ratio, "slower", "as fast")


def _times(factor: float, word: str, same: str) -> str:
    """Write a factor of at least 1; small ones with more decimals, for 1.0 says nothing."""
    digits = 2 if factor < 1.095 else 1
    written = f"{factor:.{digits}f}"
    return same if float(written) == 1 else f"{written}× {word}"


def percent(share: float, digits: int = 0) -> str:
    """Write a share of 1 in percent; one that rounds to nothing as less than the least that would show."""
    least = 10.0**-digits
    written = f"{100 * share:.{digits}f}"
    return f"<{least:.{digits}f} %" if float(written) == 0 else f"{written} %"


def format_drop(drop: float) -> str:
    """Say how far a metric changed: the float value minus the quantized one."""
    if not math.isfinite(drop):
        return "not finite"
    return "the same" if not drop else f"{abs(drop):.4g} {'less' if drop > 0 else 'more'}"


def milliseconds(value: float, beside: float | None = None) -> str:
    """Write a latency for people, in milliseconds.

    Args:
        value: What is written.
        beside: Another latency of the same row, which is written with as many decimals.

    """
    least, most = sorted((value, value if beside is None else beside))
    digits = next((digits for least, digits in ((10, 1), (1, 2)) if most >= least), 3)
    if least < 1:  # two digits of the smaller one show at least
        digits = max(digits, 2 if least >= 0.1 else 3)
    return f"{value:.{digits}f} ms"


def duration(seconds: float) -> str:
    """Write how long something takes for people: `0.4 s`, `12 s`, `3 min 05 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def truncate(names: Sequence[str], max_length: int) -> list[str]:
    """Cut long names to `max_length` characters: what all of them begin with first, then the middle."""
    least, greatest = min(names, default=""), max(names, default="")  # what these two share, all share
    same = next((i for i, pair in enumerate(zip(least, greatest, strict=False)) if pair[0] != pair[1]), len(least))
    shared = least[:same] if any(len(name) > max_length for name in names) else ""
    cut = (shared.rfind("/") if "/" in shared else shared.rfind(".")) + 1  # whole parts of names only
    parts = [f"…{name[cut:]}" if cut > 1 else name for name in names]
    behind = (max_length - 1) // 2
    return [p if len(p) <= max_length else f"{p[: max_length - 1 - behind]}…{p[-behind:]}" for p in parts]


def join_words(items: Sequence[str]) -> str:
    """Write items one after the other: `a, b and c`."""
    return " and ".join(item for item in (", ".join(items[:-1]), *items[-1:]) if item)


def counted(count: int, noun: str) -> str:
    """Write a number of things: `1 sample`, `2 samples`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def as_list(given: Named | Iterable[Named]) -> tuple[Named, ...]:
    """Take a single name or path for a list of one: a string would do as a list, too, of its letters."""
    return (given,) if isinstance(given, (str, PathLike)) else tuple(given)


def did_you_mean(
    word: str,
    candidates: Iterable[str],
    *,
    most: int = 1,
    cutoff: float = 0.4,
    elsewhere: Mapping[str, str] | None = None,
) -> str:
    """Ask whether what is known under a similar name was meant, in a sentence; empty where nothing is similar.

    Args:
        word: The unknown word.
        candidates: What could have been meant.
        most: How many names to offer.
        cutoff: How similar they have to be, 0 to 1; see `difflib.get_close_matches`.
        elsewhere: What candidates are called elsewhere, in small letters, and which of them each is.

    """
    meant = (elsewhere or {}).get(word.lower())
    near = [meant] if meant else difflib.get_close_matches(word, list(candidates), n=most, cutoff=cutoff)
    names = " or ".join(f"'{name}'" for name in near)
    return f"Did you mean {names}?" if near else ""


def shell_path(path: str | PathLike[str]) -> str:
    """Spell a path for a shell, so that a command with it can be pasted; one that begins with a dash is no option."""
    return shlex.quote(no_option(str(path)))


def no_option(path: str) -> str:
    """Spell a path that begins with a dash so that no command takes it for an option."""
    return f"./{path}" if path.startswith("-") else path


def shell_hint(path: str) -> str:
    """Say how to write a path with something that the shell was to replace; empty where there is nothing."""
    if path.startswith("~"):
        return "The shell replaces ~ at the beginning of a word without quotes only: write $HOME."
    if VARIABLE.search(path):
        return "The shell replaces $NAME outside of single quotes only: write double ones, or none."
    return ""


def printable(text: str) -> str:
    """Put a name or message from a file on one line: what could steer its reader is written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(readable(text).split()))


def readable(text: str) -> str:
    r"""Write a file name that Python could not decode as UTF-8, and bytes that are none as `\xff`.

    Args:
        text: It may have lone surrogates, which stand for bytes of file names (PEP 383).

    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # other surrogates, which no file name has
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_plainly(error: UnicodeError) -> tuple[str, int]:
    r"""Replace what an encoding lacks: signs by ASCII that looks alike, other characters by escapes such as `\xe4`.

    Made for `codecs.register_error`.

    Args:
        error: Says what could not be encoded.

    Raises:
        UnicodeError: The error itself, where it is none of encoding.

    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = readable(error.object[error.start : error.end]).translate(ALIKE)
    return part.encode("ascii", "backslashreplace").decode("ascii"), error.end
