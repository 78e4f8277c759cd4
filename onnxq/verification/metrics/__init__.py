"""Metrics that are called by name, such as `--metric top1`.

Functions of a user do not belong here: those are loaded by `onnxq.verification.user_metric`.
"""
