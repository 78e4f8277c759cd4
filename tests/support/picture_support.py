"""Pictures and tiny models for tests of data that are no arrays."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def picture(height: int = 24, width: int = 32, seed: int = 0, channels: int = 3) -> np.ndarray:
    """A smooth picture with noise, in bytes."""
    generator = np.random.default_rng(seed)
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    planes = [
        np.clip(
            255 * (generator.uniform() * across + generator.uniform() * down) + generator.normal(0, 9, (height, width)),
            0,
            255,
        )
        for _ in range(channels)
    ]
    made = np.stack(planes, axis=-1).astype(np.uint8)
    return made[..., 0] if channels == 1 else made


def save_picture(path: Path, array: np.ndarray, **options: Any) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def photos(folder: Path, count: int = 12, height: int = 24, width: int = 32) -> Path:
    for index in range(count):
        save_picture(folder / f"{index}.png", picture(height, width, index))
    return folder


def classifier(
    path: Path,
    shape: list[Any] | None = None,
    classes: int = 4,
    *,
    last: bool = False,
    metadata: dict[str, str] | None = None,
) -> Path:
    """A convolution, BatchNormalization, a global mean and a Gemm over pictures of 3 channels."""
    generator = np.random.default_rng(1)
    shape = shape or ["n", 3, 16, 16]
    weights = {
        "w": generator.normal(0, 0.4, (8, 3, 3, 3)).astype(np.float32),
        "b": generator.normal(0, 0.5, 8).astype(np.float32),
        "v": generator.normal(0, 0.5, (8, classes)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x" if not last else "t", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    if last:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], classes])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if metadata:
        helper.set_model_props(model, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def box_detector(path: Path, side: int = 64, classes: int = 2) -> Path:
    """A detector as ultralytics exports them: `[1, 4 + classes, places]`, and metadata about its pictures."""
    generator = np.random.default_rng(5)
    cells = side // 8
    weights = {
        "w": generator.normal(0, 0.2, (8, 3, 4, 4)).astype(np.float32),
        "b": generator.normal(0, 0.2, 8).astype(np.float32),
        "v": generator.normal(0, 0.4, (4 + classes, 8, 2, 2)).astype(np.float32),
        "shape": np.array([1, 4 + classes, cells * cells]),
        "parts": np.array([4, classes]),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w", "b"], ["c"], strides=[4, 4]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["h"], strides=[2, 2]),
        helper.make_node("Reshape", ["h", "shape"], ["f"]),
        helper.make_node("Split", ["f", "parts"], ["boxes", "logits"], axis=1),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["output0"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, side, side])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 4 + classes, cells * cells])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    names = "{" + ", ".join(f"{number}: 'class {number}'" for number in range(classes)) + "}"
    metadata = {"author": "Ultralytics", "task": "detect", "stride": "8", "imgsz": f"[{side}, {side}]", "names": names}
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A PNG file of chunks, each with its right checksum."""
    made = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        made += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return made
