"""The order of all steps, for models in memory, large models and models that cannot be run.

It computes nothing itself.
"""
