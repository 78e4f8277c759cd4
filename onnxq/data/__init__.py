"""Samples: sources, validation, labels and synthetic inputs.

Statistics of samples are in `calibration`.
"""
