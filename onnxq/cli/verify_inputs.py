"""The inputs of `onnxq verify`: a model in the right form, and samples.

Tests: `tests/cli/test_cli_looking.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxq.data.reading import Reading
    from onnxq.data.samples import Samples
    from onnxq.ir import Model as IrModel


RANDOM_SAMPLES = 8


def check_form(path: Path, model: IrModel) -> None:
    """Refuse a file that the ONNX checker or ours objects to; what is only odd is said on stderr."""
    from onnxq.cli.terminal import note
    from onnxq.errors import CheckFailed, ModelError
    from onnxq.project.provenance import external_files
    from onnxq.verification.compare import check_wellformed
    from onnxq.verification.wellformed import find_defects

    try:
        external_files(path, model)  # the checker has other words for one that is missing
    except ModelError as error:
        raise CheckFailed(f"{path} is not well formed: {error.message}", error.hint) from error
    objection = check_wellformed(path)
    if objection:
        raise CheckFailed(f"{path} is no valid ONNX model: {objection}", "Export or quantize it again.")
    defects = find_defects(model)
    errors = [defect.sentence for defect in defects if defect.is_error]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CheckFailed(f"{path} is not well formed: {errors[0]}{more}", "Export or quantize it again.")
    for defect in defects:
        note(f"{path}: {defect.sentence}")


def choose_samples(model: IrModel, data: list[str], limit: int | None, reading: Reading) -> Samples:
    """Open the data, or make up random samples where there are none."""
    from onnxq.data.samples import input_specs
    from onnxq.data.synthetic import synthetic_samples
    from onnxq.ir import infer_types
    from onnxq.stages.files import open_data

    infer_types(model)
    given = open_data(model, data, None, limit, reading)
    if given is not None:
        return given
    return synthetic_samples(model, input_specs(model), RANDOM_SAMPLES)
