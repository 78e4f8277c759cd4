"""Train the sample models on scikit-learn's digits; write them and their data, the same bytes each time on one machine.

    python -m venv /tmp/torchvenv
    /tmp/torchvenv/bin/pip install torch==2.13.0 scikit-learn onnx onnxruntime numpy
    /tmp/torchvenv/bin/python sample_models/train.py            # all of them; or name some: train.py cnn lstm

PyTorch and scikit-learn are needed here only; using the models needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import graphs
import networks
import numpy as np
import onnx
import onnxruntime as ort
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent
SEED = 2024
TEST_IMAGES = 597
CALIBRATION_IMAGES = 100

Data = tuple[Tensor, Tensor]
# name → (network, epochs, highest learning rate, what writes the ONNX file)
MODELS: dict[str, tuple[type[nn.Module], int, float, Callable[[graphs.Weights], onnx.ModelProto]]] = {
    "cnn": (networks.DigitsCnn, 60, 3e-3, graphs.cnn),
    "depthwise": (networks.DigitsDepthwise, 60, 5e-3, graphs.depthwise),
    "attention": (networks.DigitsAttention, 120, 2e-3, graphs.attention),
    "lstm": (networks.DigitsLstm, 120, 5e-3, graphs.lstm),
    "if": (networks.DigitsIf, 120, 2e-3, partial(graphs.conditional, threshold=networks.THRESHOLD)),
}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train, test = split_digits()
    write_data(train, test)
    for name in names or list(MODELS):
        network, epochs, rate, write = MODELS[name]
        torch.manual_seed(SEED)
        model = fit(network(), train, epochs, rate)
        path = HERE / f"digits_{name}.onnx"
        exported = write({key: value.numpy() for key, value in model.state_dict().items()})
        path.write_bytes(exported.SerializeToString(deterministic=True))
        compare(path, model, test)


def split_digits() -> tuple[Data, Data]:
    """1,200 images to train with and 597 to test with, drawn at random once; pixels 0..16 become 0..1."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = torch.from_numpy((digits.images[order, None] / 16).astype(np.float32))
    labels = torch.from_numpy(digits.target[order].astype(np.int64))
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


def write_data(train: Data, test: Data) -> None:
    """Calibration images come from the training part: none of them is a test image."""
    np.savez_compressed(HERE / "digits_calibration.npz", image=train[0][:CALIBRATION_IMAGES].numpy())
    np.savez_compressed(HERE / "digits_test.npz", image=test[0].numpy(), _label=test[1].numpy())


def fit(model: nn.Module, train: Data, epochs: int, rate: float) -> nn.Module:
    """AdamW with one rise and fall of the learning rate. The test images are never looked at, not even to stop."""
    images, labels = train
    batches = len(labels) // 60
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(60):
            optimizer.zero_grad()
            batch = shifted(images[chosen])
            # the two branches of the If are trained on every image, not only on those that would reach them
            outputs = (
                [model.large(batch), model.small(batch)] if isinstance(model, networks.DigitsIf) else [model(batch)]
            )
            sum(F.cross_entropy(logits, labels[chosen]) for logits in outputs).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return model.eval()


def shifted(images: Tensor) -> Tensor:
    """Each image [n, 1, 8, 8] moved by up to one pixel across and down; what comes in is empty (0)."""
    padded = F.pad(images, (1, 1, 1, 1))
    down, across = torch.randint(0, 3, (2, len(images), 1, 1))
    rows, columns = down + torch.arange(8)[:, None], across + torch.arange(8)
    return padded[torch.arange(len(images))[:, None, None], 0, rows, columns][:, None]


@torch.no_grad()
def compare(path: Path, model: nn.Module, test: Data) -> None:
    """Accuracy of the file in onnxruntime, one image at a time, and its distance from the trained network."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of each weight that is also an input, which is what digits_cnn is for
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ours = np.concatenate([session.run(None, {"image": image[None].numpy()})[0] for image in test[0]])
    theirs = torch.cat([model(image[None]) for image in test[0]]).numpy()
    distance = float(np.abs(ours - theirs).max())
    if distance > 1e-3:
        raise SystemExit(f"{path.name}: onnxruntime and PyTorch differ by {distance}")
    accuracy = float((ours.argmax(1) == test[1].numpy()).mean())
    print(f"{path.name}: {path.stat().st_size} bytes, accuracy {accuracy:.2%}, PyTorch differs by {distance:.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
