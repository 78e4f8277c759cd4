"""Charts as SVG that stands inside a page: no fonts, no colours and no identifiers of their own, the same bytes always.

Text stays text, so it can be searched and read aloud. Colours are CSS variables of the page, so they follow its light
or dark scheme.

Tests: `tests/report/test_report_html.py`.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from onnxq.report.activations import Activation
from onnxq.text import printable, truncate
from onnxq.verification.records import LayerComparison

# Colours of a chart, and the variable of the page that replaces each
INK, RULE, SOFT = "#101112", "#202122", "#303132"
TOTAL, OWN, INHERITED, CLIPPED = "#404142", "#505152", "#606162", "#707172"
VARIABLES = {
    INK: "ink",
    RULE: "rule",
    SOFT: "soft",
    TOTAL: "total",
    OWN: "own",
    INHERITED: "inherited",
    CLIPPED: "clipped",
}
WIDTH, NARROW = 6.6, 4.6  # inches of 72 units: letters stay readable on a phone
MOST_NAMES = 16  # along an axis
FLOAT_NOISE = 100.0  # dB; beyond that is how float32 itself rounds
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "onnxq",
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the layout is the same everywhere
    "font.size": 9.5,
    "text.parse_math": False,  # a $ in the name of a node is a $
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": SOFT,
    "grid.linewidth": 0.7,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.unicode_minus": True,
    "path.simplify": True,
}


def error_chart(layers: Sequence[LayerComparison]) -> str | None:
    """Draw the error of every layer in graph order, in dB; None where no layer has any."""
    # Most layers add nothing of their own: those that do are dots, which need no neighbour to show
    lines: tuple[tuple[str, dict[str, Any], list[float]], ...] = (
        ("total", {"color": TOTAL, "linewidth": 1.8}, [layer.sqnr for layer in layers]),
        ("inherited", {"color": INHERITED, "linewidth": 1.4, "linestyle": ":"}, [layer.inherited for layer in layers]),
        ("own", {"color": OWN, "linestyle": "none", "marker": "o", "markersize": 4}, [layer.own for layer in layers]),
    )
    if not any(math.isfinite(value) for *_, values in lines for value in values):
        return None
    with _figure(WIDTH, 3.4 if len(layers) > MOST_NAMES else 4.0) as figure:
        axes = figure.subplots()
        places = np.arange(1, len(layers) + 1)
        for label, style, values in lines:
            known = [value if math.isfinite(value) else math.nan for value in values]
            axes.plot(places, known, label=label, **style)
        axes.set_ylabel("SQNR (dB), higher is better")
        if axes.get_ylim()[1] > FLOAT_NOISE > axes.get_ylim()[0]:
            axes.set_ylim(top=FLOAT_NOISE)
        axes.margins(x=0.02)
        if len(layers) <= MOST_NAMES:
            names = truncate([printable(layer.node) for layer in layers], 20)
            axes.set_xticks(places, names, rotation=40, ha="right", rotation_mode="anchor")
        else:
            axes.locator_params(axis="x", integer=True)
            axes.set_xlabel("layer, in graph order")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        said = [_said(place, layer) for place, layer in enumerate(layers, 1)]
        title = "Signal-to-quantization-noise ratio of every layer along the graph: total, own, inherited"
        return _svg(figure, title, said=said)


def _said(place: int, layer: LayerComparison) -> str:
    """Say what stands at a place of the error chart."""
    figures = (("total", layer.sqnr), ("own", layer.own), ("inherited", layer.inherited))
    known = ", ".join(f"{name} {value:.1f} dB" for name, value in figures if math.isfinite(value))
    return f"{place}  {printable(layer.node)} ({layer.op_type})\n{known or 'no error'}"


def bar_chart(names: Sequence[str], values: Sequence[float], label: str, title: str) -> str:
    """Draw one bar for each name, the first on top, the figure behind it."""
    with _figure(WIDTH, 0.7 + 0.27 * len(names)) as figure:
        axes = figure.subplots()
        bars = axes.barh(np.arange(len(names)), values, color=OWN, height=0.68)
        axes.bar_label(bars, [f"{value:.3g} %" for value in values], padding=4, color=INK)
        axes.set_yticks(np.arange(len(names)), truncate([printable(name) for name in names], 42))
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12, y=0.01)
        axes.tick_params(axis="y", length=0)
        said = [f"{printable(name)}\n{value:.3g} %" for name, value in zip(names, values, strict=True)]
        return _svg(figure, title, said=said, across=True)


def histogram_chart(activation: Activation) -> str:
    """Draw an activation's histogram, and over it the grid of codes: its range, its step, and where zero is."""
    with _figure(NARROW, 2.7) as figure:
        axes = figure.subplots()
        edges = np.asarray(activation.edges)
        shares = 100 * np.asarray(activation.counts) / max(activation.elements, 1)
        usual = float(np.median(np.diff(edges)))
        heights = shares * np.where(np.diff(edges) > 0, usual / np.maximum(np.diff(edges), 1e-300), 0)
        shown = heights[heights > 0]
        floor = 10 ** math.floor(math.log10(shown.min())) if len(shown) else 1e-3
        axes.stairs(np.maximum(heights, floor), edges, baseline=floor, fill=True, color=TOTAL, alpha=0.75)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_ylim(floor, 10 ** (math.log10(max(shown.max(initial=1e-3), floor * 10)) + 0.15))
        _draw_grid(axes, activation)
        axes.set_xlabel("value")
        axes.set_ylabel("elements per bin (%)")
        axes.grid(visible=False, axis="x")
        return _svg(figure, f"Histogram of {printable(activation.tensor)} with the range of its codes")


def _draw_grid(axes: Any, activation: Activation) -> None:
    """Draw the codes along the upper edge, zero as a line, and what lies outside the range."""
    low, high, scale = activation.low, activation.high, activation.scale
    left, right = min(low, activation.minimum), max(high, activation.maximum)
    pad = (right - left) * 0.03 or 1.0
    axes.set_xlim(left - pad, right + pad)
    for start, end in ((activation.minimum, low - scale / 2), (high + scale / 2, activation.maximum)):
        if end > start:  # clipped
            axes.axvspan(start, end, color=CLIPPED, alpha=0.16, linewidth=0)
    axes.axvline(0.0, color=OWN, linewidth=1.4, linestyle="--")
    zero, first = activation.zero_point, round(low / scale) + activation.zero_point
    last = round(high / scale) + zero
    codes = axes.secondary_xaxis(
        "top", functions=(lambda value: value / scale + zero, lambda code: (code - zero) * scale)
    )
    step = (last - first + 1) // 8
    codes.set_xticks([*range(first, last, 2 * step), last])
    codes.set_xticks(range(first, last + 1, max(step // 4, 1)), minor=True)
    codes.set_xlabel(f"code ({activation.dtype}); dashed: zero point {zero}")
    codes.tick_params(which="minor", length=2.5)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """Return a figure to draw on, in the style of the page."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            matplotlib.rcdefaults()  # whatever style its user has
            matplotlib.rcParams.update(STYLE)
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's fonts have them
            yield Figure(figsize=(width, height), layout="constrained")
    finally:
        logger.setLevel(level)


def _svg(figure: Figure, title: str, *, said: Sequence[str] = (), across: bool = False) -> str:
    """Write a figure as an `svg` element to put into a page.

    Args:
        figure: The figure.
        title: What it shows.
        said: What a browser says when the pointer is over each place: on the x axis counted from 1, or on the y axis
            from 0.
        across: Whether places are rows.

    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)  # several charts share a page; nothing refers to these
    text = re.sub(r'style="[^"]*"', _in_the_pages_colours, text)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r"\n\s*", "\n", body).strip()
    body = body.removesuffix("</svg>") + _hover(figure, said, across=across) + "</svg>"
    label = escape(title, quote=True)
    return f'<svg role="img" aria-label="{label}" {box[0]}><title>{escape(title)}</title>{body}'


def _hover(figure: Figure, said: Sequence[str], *, across: bool) -> str:
    """Lay a rectangle without colour over each place, with its words as a title."""
    if not said:
        return ""
    axes = figure.axes[0]
    box = axes.get_position()
    width, height = (72 * inches for inches in figure.get_size_inches())
    left, top, wide, high = box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height
    first, last = axes.get_ylim()[::-1] if across else axes.get_xlim()
    step = (high if across else wide) / (last - first)
    made = []
    for index, words in enumerate(said):
        start = ((index if across else index + 1) - 0.5 - first) * step
        place = (0.0, top + start, width, step) if across else (left + start, top, step, high)
        x, y, w, h = (f"{number:.2f}" for number in place)
        made.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}"><title>{escape(words)}</title></rect>')
    return f'<g class="hover">{"".join(made)}</g>'


def _in_the_pages_colours(style: re.Match[str]) -> str:
    text = style[0]
    for colour, name in VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return text
