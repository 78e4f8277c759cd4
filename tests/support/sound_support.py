"""Recordings made with the module wave, and a small voice detector with a state."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from text_support import _weights, save_model


def tone(seconds: float = 0.5, rate: int = 16000, seed: int = 0) -> np.ndarray:
    """A chord with noise, from -1 to 1."""
    generator = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * generator.uniform(100, 2000) * times + seed) for _ in range(3))
    swell = np.sin(np.pi * times / seconds) ** 2
    return np.asarray(0.25 * chord * swell + generator.normal(0, 0.01, times.size))


def save_wav(path: Path, array: np.ndarray, rate: int = 16000) -> Path:
    """Save `[frames]` or `[frames, channels]` in 16 bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.clip(np.round(array * 32767), -32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if data.ndim == 1 else data.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(data.tobytes())
    return path


def recordings(folder: Path, count: int = 4, seconds: float = 0.5, rate: int = 16000) -> Path:
    for index in range(count):
        save_wav(folder / f"{index}.wav", tone(seconds, rate, index), rate)
    return folder


def detector(path: Path, frames: Any = 256, width: int = 16, metadata: dict[str, str] | None = None) -> Path:
    """A waveform, its rate and a state go in; the probability of speech and the next state come out."""
    import onnx

    inputs = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", frames]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, "batch", width]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    size = frames if isinstance(frames, int) else 256
    weights = _weights({"w": (size, width), "u": (width, width), "v": (width, 1), "b": (width,)})
    weights.append(numpy_helper.from_array(np.array([0]), "zero"))
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["x"]),
        helper.make_node("Squeeze", ["state", "zero"], ["s"]),
        helper.make_node("MatMul", ["s", "u"], ["past"]),
        helper.make_node("Add", ["x", "past"], ["sum"]),
        helper.make_node("Add", ["sum", "b"], ["biased"]),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rate", "tiny"], ["share"]),
        helper.make_node("Add", ["biased", "share"], ["told"]),
        helper.make_node("Tanh", ["told"], ["next"]),
        helper.make_node("Unsqueeze", ["next", "zero"], ["stateN"]),
        helper.make_node("MatMul", ["next", "v"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["output"]),
    ]
    weights.append(numpy_helper.from_array(np.float32(1e-6), "tiny"))
    outputs = [
        helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1]),
        helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [1, "batch", width]),
    ]
    save_model(path, nodes, inputs, outputs, weights)
    if metadata:
        model = onnx.load(path)
        helper.set_model_props(model, metadata)
        onnx.save(model, path)
    return path
