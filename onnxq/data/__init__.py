"""Samples: sources, validation, labels and synthetic inputs.

What looks wrong about samples is here, too; statistics for ranges are in `calibration`.
"""
