"""How good a result is: comparison with float, error by layer, detections, kernels in use, saturation.

It changes no model.
"""
