"""onnxq turns a float ONNX model into a quantized one that is valid, verified, smaller and faster."""
