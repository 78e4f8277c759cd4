"""NumPy kernels of ONNX operators in float and integer types.

Quantization operators are in `ops.quantized`; what becomes of a node is in `ops.forms`.
"""
