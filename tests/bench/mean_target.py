"""Write the geometric mean of the kernel times of two processors of a family, and print how far they are apart.

    python tests/bench/mean_target.py FIRST.toml SECOND.toml --output onnxq/targets/NAME.toml

Both come from `measure_target.py`, the second one with the same sizes. Placement, comments and what only the first has
stay as the first has them. Sources are joined. Where a time is 0 on one processor, it stays that of the first.

A line for each table: 8 bit by float on both, in the median, and the least and most that the second has of the first's.
"""

from __future__ import annotations

import argparse
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxq.targets.grid import AXES

KEPT = ("rows",)  # kernels on their own take three times what they take in a model
LINE = re.compile(r"(\w+) = (.*?)(\s+#.*)?$")
Tables = Mapping[str, Any]


def mean(first: Any, second: Any) -> Any:
    """Return the geometric mean of two numbers, or of those in two lists."""
    if isinstance(first, list):
        return [mean(one, other) for one, other in zip(first, second, strict=True)]
    found = math.sqrt(first * second) if first > 0 and second > 0 else first
    return round(found) if found > 100 else float(f"{found:.4g}")


def joined(first: str, second: str) -> str:
    """Join what two tables say of their source."""
    return f"{first}, and on {second.removeprefix('measured on ')}; geometric mean"


def mean_lines(text: str, first: Tables, second: Tables) -> Iterator[str]:
    """Yield the lines of the first file with the means of both in its tables."""
    section = ""
    for line in text.splitlines():
        section = line.strip("[]") if line.startswith("[") else section
        found, table = LINE.match(line), first.get(section, {})
        name = found.group(1) if found is not None else ""
        other = second.get(section, {}).get(name)
        if found is None or "source" not in table or section in KEPT or name in AXES or other is None:
            yield line
        elif name == "source":
            yield f'source = "{joined(table[name], other)}"'
        else:
            yield f"{name} = {mean(table[name], other)}{found.group(3) or ''}"


def comparison(name: str, first: Tables, second: Tables) -> str:
    """Say how far two tables over sizes are apart."""
    ratios = [np.array(table["integer"]) / np.array(table["float"]) for table in (first, second)]
    apart = ratios[1] / ratios[0]
    typical = " ".join(f"{np.median(ratio):.2f}" for ratio in ratios)
    return f"{name:<10} {typical}  the second by the first {apart.min():.2f} to {apart.max():.2f}"


def main() -> None:
    """Compare two files, and write their mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    text = given.first.read_text()
    first, second = tomllib.loads(text), tomllib.loads(given.second.read_text())
    for name, table in first.items():
        if isinstance(table, dict) and {"float", "integer"} <= table.keys():
            print(comparison(name, table, second[name]))
    if given.output is not None:
        given.output.write_text("\n".join(mean_lines(text, first, second)) + "\n")


if __name__ == "__main__":
    main()
