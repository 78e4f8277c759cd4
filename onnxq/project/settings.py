"""Refuse settings that no model can be built with, before the first model is built.

Tests: `tests/project/test_project_file.py`.
"""

from __future__ import annotations

from onnxq.errors import OnnxqError, ProjectError
from onnxq.planning.recipe import block_recipe, choose_recipe
from onnxq.project.entry import Entry, Project
from onnxq.verification.metrics.by_name import metric_of_name


def refuse_settings(project: Project) -> None:
    """Refuse names and numbers that are wrong whatever the models are: recipe, target, bits, caches and metric.

    Raises:
        ProjectError: Names the first model with such a setting, what is wrong, and what fits.

    """
    for entry in project.entries:
        try:
            _refuse(entry)
        except OnnxqError as error:
            raise ProjectError(f"{project.path}: {entry.source}: {error.message}", error.hint) from error


def _refuse(entry: Entry) -> None:
    options = entry.options
    if options.bits is not None or options.block is not None:
        block_recipe(options.recipe, options.bits, options.block, options.target)
    choose_recipe(entry.recipe_source(), target=options.target, kv_cache=options.kv_cache)
    if options.metric is not None:
        metric_of_name(options.metric)
