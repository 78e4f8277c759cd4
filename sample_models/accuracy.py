"""Accuracy of models on the test digits, one image at a time: `python sample_models/accuracy.py [MODEL.onnx ...]`.

Works for the quantized versions as well. Needs onnxruntime and NumPy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

HERE = Path(__file__).parent


def accuracy(model: Path | bytes) -> float:
    """The share of the 597 test images whose largest logit is at the label."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # onnxruntime warns of each weight that is also an input, which digits_cnn has
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(HERE / "digits_test.npz") as data:
        images, labels = data["image"], data["_label"]
    logits = np.concatenate([session.run(["logits"], {"image": image[None]})[0] for image in images])
    return float((logits.argmax(axis=1) == labels).mean())


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(HERE.glob("digits_*.onnx"))):
        print(f"{path.name:24} {path.stat().st_size:8,} bytes   {accuracy(path):.2%}")
