"""Samples: sources, validation, labels and synthetic inputs.

Warnings about samples are here, too; statistics for ranges are in `calibration`.
"""
