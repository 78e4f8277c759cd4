"""A pass of Microsoft Olive that quantizes with onnxq; Olive finds it by a package config.

Imported by Olive alone, and needs `pip install 'onnxq[olive]'`. Parameters are the options of a model in `onnxq.toml`.

Tests: `tests/publish/test_olive_pass.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
from olive.common.config_utils import validate_config
from olive.data.config import DataConfig
from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.resource_path import LocalFile, LocalFolder
from olive.search.search_parameter import Categorical

from onnxq.errors import RecipeError
from onnxq.ir.storage.files import data_path
from onnxq.pipeline.options import Declaration, QuantizeOptions, declarations
from onnxq.pipeline.quantize import quantize
from onnxq.runtime.custom_ops import register_custom_ops

SEARCHED = {
    "recipe": ("auto", "static-int8", "dynamic-int8"),
    "fast": (False, True),
}  # where `SEARCHABLE_VALUES` is set
DATA_CONFIG = "data_config"


class OnnxqQuantization(Pass):  # type: ignore[misc]
    """Quantize an ONNX model with onnxq."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        given = {name: _parameter(name, one) for name, one in _options().items()}
        described = "Calibration data of Olive, in place of `data`."
        kind = Union[DataConfig, dict[str, Any]]  # noqa: UP007  (Olive reads its arguments)
        return given | {DATA_CONFIG: PassConfigParam(type_=kind, default_value=None, description=described)}

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        source = Path(model.model_path)
        output = Path(resolve_onnx_path(output_model_path, source.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        given = {name: getattr(config, name) for name in _options()}
        options = QuantizeOptions(**{name: _read(_options()[name], value) for name, value in given.items()})
        for library in options.custom_ops:
            register_custom_ops(library)
        arguments = options.arguments(force=True)
        if getattr(config, DATA_CONFIG) is not None:
            if options.data:
                raise RecipeError("both 'data' and 'data_config' are given", "Leave one of them out.")
            arguments["samples"] = samples_of(validate_config(getattr(config, DATA_CONFIG), DataConfig), model)
        quantize(source, output=output, **arguments)
        if data_path(output).exists():
            return ONNXModelHandler(LocalFolder({"path": output.parent}), onnx_file_name=output.name)
        return ONNXModelHandler(LocalFile({"path": output}))


def samples_of(data: DataConfig, model: ONNXModelHandler) -> Callable[[], Iterator[Mapping[str, np.ndarray]]]:
    """Return a function that gives the batches of Olive's data as samples of a model, from the first one each time."""

    def read() -> Iterator[Mapping[str, np.ndarray]]:
        loader = data.to_data_container().create_calibration_dataloader(model.model_path, model.io_config)
        while (batch := loader.get_next()) is not None:
            yield {name: np.asarray(array) for name, array in batch.items()}

    return read


def package_config() -> dict[str, Any]:
    """Return Olive's own package config with this pass added."""
    found: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8"))
    found["passes"][OnnxqQuantization.__name__] = {
        "module_path": f"{__name__}.{OnnxqQuantization.__name__}",
        "supported_providers": ["CPUExecutionProvider"],
        "supported_accelerators": ["cpu"],
        "supported_precisions": ["int8", "int4"],
        "supported_algorithms": ["gptq"],
        "supported_quantization_encodings": ["qdq", "qop"],
        "dataset": "dataset_optional",
    }
    return found


def write_package_config(path: str | Path) -> None:
    """Write `package_config` for `olive run --package-config`."""
    Path(path).write_text(json.dumps(package_config(), indent=2) + "\n", "utf-8")


def _options() -> dict[str, Declaration]:
    return {name: one for name, one in declarations().items() if one.toml is not None}


def _parameter(name: str, one: Declaration) -> PassConfigParam:
    """Describe an option as a parameter of Olive; paths are relative to the working folder."""
    kind: Any = str if one.kind is Path or one.size or one.word else one.kind
    searched = Categorical(list(SEARCHED[name])) if name in SEARCHED else None
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    return PassConfigParam(
        type_=list[kind] if one.many else kind, default_value=default, search_defaults=searched, description=one.help
    )


def _read(one: Declaration, value: Any) -> Any:
    """Return a parameter's value as an option has it.

    Raises:
        RecipeError: It is to be a size or a number and is none.

    """
    if value is None:
        return None
    if one.many:
        return tuple(one.kind(item) for item in value)
    return one.parse(str(value)) if one.size or one.word else one.kind(value)
