"""`onnxq recipes`: list the recipes, and write one to start from.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onnxq.cli import completion

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="Print this recipe as TOML.", show_default=False, autocompletion=completion.recipes
    ),
]


def recipes(name: Name = None) -> None:
    """List the recipes, or print one as TOML to start your own from."""
    from onnxq.planning.recipe import load_recipe, recipe_names

    if name is not None:
        sys.stdout.write(load_recipe(name).to_toml())
        return
    from onnxq.cli.tables import columns
    from onnxq.cli.terminal import show

    show(columns(("recipe", "what it does"), [(known, load_recipe(known).description) for known in recipe_names()]))
