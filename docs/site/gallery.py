"""A gallery of reports for the site: each sample model is quantized while the site is built, and its report is a page.

MkDocs calls the functions by their names; `mkdocs.yml` lists this file under `hooks`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_models"
MODELS = {
    "digits_cnn": "a convolutional network",
    "digits_depthwise": "depthwise convolutions",
    "digits_attention": "attention",
    "digits_lstm": "an LSTM",
}
PAGE = "gallery.md"
STYLE = "td:first-child code { white-space: nowrap; }\n"  # or a phone breaks options behind their dashes
INTRODUCTION = """# Gallery of reports

`onnxq quantize MODEL -d DATA --report FILE.html` writes such a page. These were made with the site, from
models in `sample_models`.

| report | model | size | SQNR of the worst output |
|---|---|---|---|
"""


def on_config(config: Any) -> Any:
    """Add the gallery to the navigation."""
    config["nav"].append({"Gallery": PAGE})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Make the reports and the page that links them."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(ROOT))
    from onnxq import quantize
    from onnxq.text import decibels, size_change

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, what in MODELS.items():
            output = Path(folder) / f"{name}.int8.onnx"
            data = SAMPLES / "digits_calibration.npz"
            report = quantize(SAMPLES / f"{name}.onnx", output=output, data=data, detailed=True)
            files.append(File.generated(config, f"gallery/{name}.html", content=report.to_html()))
            assert report.comparison is not None
            assert report.output_bytes is not None
            change = size_change(report.source_bytes, report.output_bytes)
            sqnr = decibels(report.comparison.worst_sqnr)
            lines.append(f"| [{name}](gallery/{name}.html) | {what} | {change} | {sqnr} |\n")
    files.append(File.generated(config, PAGE, content=INTRODUCTION + "".join(lines)))
    files.append(File.generated(config, "assets/onnxq.css", content=STYLE))
    return files
