"""Integer codes and scales of weights: round to nearest, GPTQ, coordinate descent, saturation limits.

Scales of activations are in `calibration`.
"""
