"""A hint about an option names its key to those who have a project file."""

import pytest

from onnxq.project.words import in_project_file


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("Choose another place with --output.", "Choose another place with 'quantized'."),
        ("Leave nodes float with --exclude.", "Leave nodes float with 'exclude'."),
        ("Give --min-sqnr 20.", "Give 'min-sqnr' 20."),
        ("Use --force to replace it.", "Use --force to replace it."),
        ("Run `git lfs pull`.", "Run `git lfs pull`."),
    ],
)
def test_options_become_keys(hint: str, said: str) -> None:
    assert in_project_file(hint) == said
