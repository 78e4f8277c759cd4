"""Operator families: one file a family, with its kernels, its quantized forms and its refusals."""
