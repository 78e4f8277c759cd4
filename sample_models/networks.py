"""The five networks as PyTorch modules, used only to train them; `graphs.py` writes the ONNX files.

All take `image` [batch, 1, 8, 8] float32 in [0, 1] and give `logits` [batch, 10].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

THRESHOLD = 0.305  # mean brightness that picks the branch of `DigitsIf`; the training images have the median 0.307


class DigitsCnn(nn.Module):
    """Three Conv-BatchNormalization-Relu layers without Conv bias, two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.conv3, self.bn3 = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(image)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.max_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        return self.fc2(F.dropout(F.relu(self.fc1(x.flatten(1))), 0.2, self.training))


class ConvBn(nn.Sequential):
    """Convolution and BatchNormalization, with Relu6 unless `linear`."""

    def __init__(self, into: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1, linear: bool = False):
        conv = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(out), *([] if linear else [nn.ReLU6()]))


class Inverted(nn.Module):
    """MobileNetV2's block: widen 1x1, depthwise 3x3, narrow 1x1, and a residual Add where the shape allows it."""

    def __init__(self, into: int, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.residual = stride == 1 and into == out
        self.conv = nn.Sequential(
            ConvBn(into, wide), ConvBn(wide, wide, 3, stride, groups=wide), ConvBn(wide, out, linear=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class DigitsDepthwise(nn.Module):
    """A small MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBn(1, 32, 3),
            Inverted(32, 128, 32, stride=1),
            Inverted(32, 128, 64, stride=2),
            Inverted(64, 256, 64, stride=1),
            ConvBn(64, 256),
        )
        self.classifier = nn.Linear(256, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(F.dropout(self.features(image).mean((2, 3)), 0.2, self.training))


class Block(nn.Module):
    """A pre-norm transformer block: self-attention with 4 heads, then a GELU MLP."""

    heads = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.reshape(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        x = x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class DigitsAttention(nn.Module):
    """A small vision transformer: 16 patches of 2x2, width 64, two blocks, mean over the tokens."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class DigitsLstm(nn.Module):
    """The 8 rows read as a sequence: a bidirectional LSTM, a forward one, a dense layer on the last state."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.rnn1 = nn.LSTM(8, hidden, bidirectional=True)
        self.rnn2 = nn.LSTM(2 * hidden, hidden)
        self.head = nn.Linear(hidden, 10)

    def forward(self, image: Tensor) -> Tensor:
        rows, _ = self.rnn1(image.reshape(-1, 8, 8).transpose(0, 1))
        _, (last, _) = self.rnn2(F.dropout(rows, 0.2, self.training))
        return self.head(last[0])


class Large(nn.Module):
    """The branch for bright images: two convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(image)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.dropout(F.relu(self.fc1(x.flatten(1))), 0.3, self.training))


class Small(nn.Module):
    """The branch for dim images: dense layers only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 192), nn.Linear(192, 96), nn.Linear(96, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.fc1(image.flatten(1))), 0.1, self.training)
        return self.fc3(F.dropout(F.relu(self.fc2(x)), 0.1, self.training))


class DigitsIf(nn.Module):
    """Two classifiers trained side by side, each on every image; the mean brightness of the batch picks one."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = Large(), Small()

    def forward(self, image: Tensor) -> Tensor:
        return self.large(image) if image.mean() > THRESHOLD else self.small(image)
