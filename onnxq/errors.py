"""Every error that onnxq raises, and the exit code each one stands for.

    OnnxqError                      2   could not do it
    ├── ModelError                  2   the model file is missing, broken or uses what onnxq does not support
    ├── DataError                   2   calibration or test data do not fit the model
    ├── RecipeError                 2   a recipe or an option is wrong
    ├── ProjectError                2   the project file is missing or wrong
    ├── EngineError                 2   an engine of other processes is gone, or its workers differ
    ├── OutputError                 2   the output exists already or cannot be written
    ├── CheckFailed                 1   the check said no: a budget or threshold was missed
    │   └── NothingToQuantize       1   no node could be quantized
    └── InvalidResult               3   what onnxq made does not load or run: a bug of ours

The library raises these and never prints; only `onnxq.cli` prints and exits. The first line says what is wrong,
`hint` says what to do.

Tests: `tests/cli/test_cli_errors.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxq.warning import WarningLine


class ExitCode(IntEnum):
    """Exit codes of the process."""

    OK = 0
    CHECK_FAILED = 1
    ERROR = 2
    BUG = 3
    INTERRUPTED = 130


class OnnxqError(Exception):
    """Base of every error that a user can meet.

    Args:
        message: One sentence that says what is wrong and names the file, node or tensor.
        hint: One sentence that says what to do about it.

    Attributes:
        warnings: Lines about the samples that may say where it comes from.

    """

    exit_code = ExitCode.ERROR
    warnings: tuple[WarningLine, ...] = ()

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelError(OnnxqError):
    """The model is missing, broken, or uses something that onnxq does not support."""


class DataError(OnnxqError):
    """Samples do not fit the model, or there are none."""


class RecipeError(OnnxqError):
    """A recipe or an option is wrong."""


class ProjectError(OnnxqError):
    """The project file, which lists the models of a repository, is missing or wrong."""


class EngineError(OnnxqError):
    """An engine that runs tasks elsewhere is gone, or a worker must not be used."""


class OutputError(OnnxqError):
    """The output is in the way or cannot be written."""


class CheckFailed(OnnxqError):
    """A check that the user asked for said no."""

    exit_code = ExitCode.CHECK_FAILED


class NothingToQuantize(CheckFailed):
    """No node of the model could be quantized; the reasons are in the plan."""


class InvalidResult(OnnxqError):
    """The model that onnxq made does not load or does not run: a bug of ours, never the user's."""

    exit_code = ExitCode.BUG
