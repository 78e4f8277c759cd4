"""The ONNX files, written node by node from the trained weights in the style of five generations of exporters.

Each function takes `weights`, a dict from PyTorch's parameter names to arrays, and returns a model.
"""

from __future__ import annotations

import numpy as np
import onnx
from build import Graph

Weights = dict[str, np.ndarray]
EPSILON = 1e-5  # PyTorch's default for BatchNormalization and LayerNormalization


def cnn(weights: Weights) -> onnx.ModelProto:
    """Opset 9: BatchNormalization kept, a flattening made of Shape/Gather/Concat, every weight also an input."""
    g = Graph(numeric=True)
    for name, array in weights.items():  # in PyTorch's order, with the counters that no node reads
        g.weight(name, array)
    x = "image"
    for layer in (1, 2, 3):
        x = g.op("Conv", [x, f"conv{layer}.weight"], dilations=[1, 1], group=1, **window(3, pad=1))
        norm = [f"bn{layer}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        x = g.op("BatchNormalization", [x, *norm], epsilon=EPSILON, momentum=0.9)
        x = g.op("Relu", [x])
        if layer > 1:
            x = g.op("MaxPool", [x], **window(2, stride=2))
    batch = g.op("Gather", [g.op("Shape", [x]), g.constant("", 0)], axis=0)
    rest = g.constant("", -1)
    shape = g.op("Concat", [g.op("Unsqueeze", [batch], axes=[0]), g.op("Unsqueeze", [rest], axes=[0])], axis=0)
    x = g.op("Reshape", [x, shape])
    x = g.op("Relu", [g.op("Gemm", [x, "fc1.weight", "fc1.bias"], alpha=1.0, beta=1.0, transB=1)])
    g.op("Gemm", [x, "fc2.weight", "fc2.bias"], output="logits", alpha=1.0, beta=1.0, transB=1)
    return g.model("torch-jit-export", opset=9, ir_version=4, weights_as_inputs=True)


def window(kernel: int, stride: int = 1, pad: int = 0) -> dict[str, list[int]]:
    return {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}


def depthwise(weights: Weights) -> onnx.ModelProto:
    """Opset 17: BatchNormalization folded into the Conv before it, Relu6 as Clip with Constant bounds."""
    g = Graph()
    g.weight("classifier.weight", weights["classifier.weight"])
    g.weight("classifier.bias", weights["classifier.bias"])
    number = iter(range(140, 200, 3))

    def conv(x: str, key: str, kernel: int = 1, stride: int = 1, clip: bool = True) -> str:
        *outer, last = (f"{module}.{index}" for module, index in zip(*[iter(key.split("."))] * 2, strict=True))
        path = "/" + "/".join(f"{part.split('.')[0]}/{part}" for part in (*outer, last))
        array, bias = folded(weights, key)
        first = next(number)
        inputs = [x, g.weight(f"onnx::Conv_{first}", array), g.weight(f"onnx::Conv_{first + 1}", bias)]
        group = len(array) if key.endswith("conv.1") else 1  # the middle layer of each block is depthwise
        attributes = window(kernel, stride, kernel // 2)
        y = g.op("Conv", inputs, f"{path}/{last}.0/Conv", dilations=[1, 1], group=group, **attributes)
        if not clip:
            return y
        low = g.constant(f"{path}/{last}.2/Constant", 0, np.float32)
        high = g.constant(f"{path}/{last}.2/Constant_1", 6, np.float32)
        return g.op("Clip", [y, low, high], f"{path}/{last}.2/Clip")

    x = conv("image", "features.0", 3)
    for block, stride in ((1, 1), (2, 2), (3, 1)):
        y = conv(x, f"features.{block}.conv.0")
        y = conv(y, f"features.{block}.conv.1", 3, stride)
        y = conv(y, f"features.{block}.conv.2", clip=False)
        x = y if stride == 2 else g.op("Add", [x, y], f"/features/features.{block}/Add")
    x = g.op("GlobalAveragePool", [conv(x, "features.4")], "/GlobalAveragePool")
    x = g.op("Flatten", [x], "/Flatten", axis=1)
    head = [x, "classifier.weight", "classifier.bias"]
    g.op("Gemm", head, "/classifier/Gemm", "logits", alpha=1.0, beta=1.0, transB=1)
    return g.model("main_graph", opset=17, ir_version=8)


def folded(weights: Weights, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of a Conv [out, in, h, w] with the BatchNormalization after it multiplied in."""
    gamma, beta, mean, var = (weights[f"{key}.1.{p}"] for p in ("weight", "bias", "running_mean", "running_var"))
    gain = gamma.astype(np.float64) / np.sqrt(var.astype(np.float64) + EPSILON)
    array = weights[f"{key}.0.weight"] * gain[:, None, None, None]
    return array.astype(np.float32), (beta - mean * gain).astype(np.float32)


def attention(weights: Weights) -> onnx.ModelProto:
    """Opset 23: a vision transformer with LayerNormalization and Gelu nodes, and shapes for every value."""
    g = Graph()
    patch = [g.weight(f"patch.{part}", weights[f"patch.{part}"]) for part in ("weight", "bias")]
    x = g.op("Conv", ["image", *patch], "node_conv2d", group=1, dilations=[1, 1], **window(2, stride=2))
    batch = g.op("Shape", ["image"], "node_sym_size_int", start=0, end=1)
    tokens, split = (g.weight(n, np.array(v)) for n, v in (("val_tokens", [0, 64, 16]), ("val_heads", [0, 16, 4, 16])))
    merged = g.op("Concat", [batch, g.weight("val_merged", np.array([16, 64]))], "node_Concat_merged", axis=0)
    x = g.op("Transpose", [g.op("Reshape", [x, tokens], "node_flatten")], "node_transpose", perm=[0, 2, 1])
    x = g.op("Add", [x, g.weight("position", weights["position"])], "node_add")
    g.weight("val_scale", np.array(0.25, np.float32))  # 1 / sqrt(head width 16)
    for block in (0, 1):
        x = transformer_block(g, weights, x, f"blocks.{block}", f"_{block}", split, merged)
    x = layer_norm(g, weights, x, "norm", "node_layer_norm_final")
    x = g.op("ReduceMean", [x, g.weight("val_axis", np.array([1]))], "node_mean", keepdims=0)
    head = [x, *(g.weight(f"head.{part}", weights[f"head.{part}"]) for part in ("weight", "bias"))]
    g.op("Gemm", head, "node_linear_head", "logits", alpha=1.0, beta=1.0, transB=1)
    return onnx.shape_inference.infer_shapes(g.model("main_graph", opset=23, ir_version=11), strict_mode=True)


def layer_norm(g: Graph, weights: Weights, x: str, key: str, name: str) -> str:
    parts = [g.weight(f"{key}.{part}", weights[f"{key}.{part}"]) for part in ("weight", "bias")]
    return g.op("LayerNormalization", [x, *parts], name, axis=-1, epsilon=EPSILON)


def dense(g: Graph, weights: Weights, x: str, key: str, name: str) -> str:
    """MatMul and Add: what exporters make of a Linear whose input has rank 3."""
    product = g.op("MatMul", [x, g.weight(f"{key}.weight_t", weights[f"{key}.weight"].T)], f"{name}_matmul")
    return g.op("Add", [product, g.weight(f"{key}.bias", weights[f"{key}.bias"])], name)


def transformer_block(g: Graph, weights: Weights, x: str, key: str, tag: str, split: str, merged: str) -> str:
    y = layer_norm(g, weights, x, f"{key}.norm1", f"node_layer_norm{tag}a")
    qkv = dense(g, weights, y, f"{key}.qkv", f"node_linear_qkv{tag}")
    parts = g.node("Split", [qkv], [f"split{tag}_{i}" for i in range(3)], f"node_Split{tag}", axis=-1, num_outputs=3)
    q, k, v = (
        g.op(
            "Transpose", [g.op("Reshape", [part, split], f"node_view{tag}_{letter}")], f"node_{letter}{tag}", perm=perm
        )
        for part, letter, perm in zip(parts, "qkv", ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = g.op("Mul", [g.op("MatMul", [q, k], f"node_matmul_qk{tag}"), "val_scale"], f"node_scores{tag}")
    mixed = g.op("MatMul", [g.op("Softmax", [scores], f"node_softmax{tag}", axis=-1), v], f"node_matmul_av{tag}")
    mixed = g.op("Transpose", [mixed], f"node_merge{tag}", perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", [mixed, merged], f"node_reshape{tag}")
    x = g.op("Add", [x, dense(g, weights, mixed, f"{key}.proj", f"node_linear_proj{tag}")], f"node_add{tag}a")
    y = layer_norm(g, weights, x, f"{key}.norm2", f"node_layer_norm{tag}b")
    y = g.op("Gelu", [dense(g, weights, y, f"{key}.fc1", f"node_linear_fc1{tag}")], f"node_gelu{tag}")
    return g.op("Add", [x, dense(g, weights, y, f"{key}.fc2", f"node_linear_fc2{tag}")], f"node_add{tag}b")


def lstm(weights: Weights) -> onnx.ModelProto:
    """Opset 14: two LSTM nodes, one bidirectional; the first gets explicit zero states, the second none."""
    g = Graph()
    head = [g.weight(f"head.{part}", weights[f"head.{part}"]) for part in ("weight", "bias")]
    x = g.op("Reshape", ["image", g.constant("/Constant", [-1, 8, 8])], "/Reshape")
    x = g.op("Transpose", [x], "/Transpose", perm=[1, 0, 2])
    batch = g.op(
        "Gather", [g.op("Shape", [x], "/rnn1/Shape"), g.constant("/rnn1/Constant", [1])], "/rnn1/Gather", axis=0
    )
    sizes = [g.constant("/rnn1/Constant_1", [2]), batch, g.constant("/rnn1/Constant_2", [64])]
    state = g.op("Concat", sizes, "/rnn1/Concat", axis=0)
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.float32))
    zeros = g.op("ConstantOfShape", [state], "/rnn1/ConstantOfShape", value=zero)
    parts = lstm_weights(g, weights, "rnn1", ["", "_reverse"], 211)
    outputs = [f"/rnn1/LSTM_output_{i}" for i in range(3)]
    inputs = [x, *parts, "", zeros, zeros]
    y, *_ = g.node("LSTM", inputs, outputs, "/rnn1/LSTM", hidden_size=64, direction="bidirectional")
    y = g.op("Transpose", [y], "/rnn1/Transpose", perm=[0, 2, 1, 3])
    y = g.op("Reshape", [y, g.constant("/rnn1/Constant_3", [0, 0, -1])], "/rnn1/Reshape")
    parts = lstm_weights(g, weights, "rnn2", [""], 257)
    last = g.node("LSTM", [y, *parts], ["", "/rnn2/LSTM_output_1"], "/rnn2/LSTM", hidden_size=64)[1]
    last = g.op("Squeeze", [last, g.constant("/Constant_1", [0])], "/Squeeze")
    g.op("Gemm", [last, *head], "/head/Gemm", "logits", alpha=1.0, beta=1.0, transB=1)
    return g.model("main_graph", opset=14, ir_version=7)


def lstm_weights(g: Graph, weights: Weights, key: str, directions: list[str], number: int) -> list[str]:
    """W, R and B of ONNX: gates in the order i, o, f, c, where PyTorch has i, f, c, o; one slice per direction."""

    def gates(part: str) -> np.ndarray:
        stacked = np.stack([weights[f"{key}.{part}_l0{direction}"] for direction in directions])
        i, f, c, o = np.split(stacked, 4, axis=1)
        return np.concatenate([i, o, f, c], axis=1)

    bias = np.concatenate([gates("bias_ih"), gates("bias_hh")], axis=1)
    arrays = (gates("weight_ih"), gates("weight_hh"), bias)
    return [g.weight(f"onnx::LSTM_{number + i}", array) for i, array in enumerate(arrays)]


def conditional(weights: Weights, threshold: float) -> onnx.ModelProto:
    """Opset 17: an If on the mean brightness of the batch; all trained weights are initializers of its two bodies."""
    g = Graph()
    mean = g.op("ReduceMean", ["image"], "/ReduceMean", axes=[0, 1, 2, 3], keepdims=0)
    bright = g.op("Greater", [mean, g.constant("/Constant", threshold, np.float32)], "/Greater")
    bodies = {
        "then_branch": large_branch(weights).body("large", "/large/logits"),
        "else_branch": small_branch(weights).body("small", "/small/logits"),
    }
    g.op("If", [bright], "/If", "logits", **bodies)
    return g.model("main_graph", opset=17, ir_version=8)


def large_branch(weights: Weights) -> Graph:
    g = Graph()
    x = "image"
    for layer in ("conv1", "conv2"):
        inputs = [
            x,
            *(g.weight(f"large.{layer}.{part}", weights[f"large.{layer}.{part}"]) for part in ("weight", "bias")),
        ]
        x = g.op("Conv", inputs, f"/large/{layer}/Conv", dilations=[1, 1], group=1, **window(3, pad=1))
        x = g.op(
            "MaxPool", [g.op("Relu", [x], f"/large/{layer}/Relu")], f"/large/{layer}/MaxPool", **window(2, stride=2)
        )
    x = g.op("Flatten", [x], "/large/Flatten", axis=1)
    for layer, output in (("fc1", ""), ("fc2", "/large/logits")):
        inputs = [
            x,
            *(g.weight(f"large.{layer}.{part}", weights[f"large.{layer}.{part}"]) for part in ("weight", "bias")),
        ]
        x = g.op("Gemm", inputs, f"/large/{layer}/Gemm", output, alpha=1.0, beta=1.0, transB=1)
        x = x if output else g.op("Relu", [x], f"/large/{layer}/Relu")
    return g


def small_branch(weights: Weights) -> Graph:
    g = Graph()
    x = g.op("Flatten", ["image"], "/small/Flatten", axis=1)
    for layer, output in (("fc1", ""), ("fc2", ""), ("fc3", "/small/logits")):
        matrix = g.weight(f"small.{layer}.weight_t", weights[f"small.{layer}.weight"].T)
        x = g.op("MatMul", [x, matrix], f"/small/{layer}/MatMul")
        x = g.op(
            "Add", [x, g.weight(f"small.{layer}.bias", weights[f"small.{layer}.bias"])], f"/small/{layer}/Add", output
        )
        x = x if output else g.op("Relu", [x], f"/small/{layer}/Relu")
    return g
