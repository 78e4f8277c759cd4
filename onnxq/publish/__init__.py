"""Files of one model for the places where models are published: names, targets and the table of a model card.

Quantizing a single file belongs to `pipeline`, a project of many models to `project`.
"""
