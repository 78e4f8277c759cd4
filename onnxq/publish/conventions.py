"""The names under which other tools load ONNX models, as data.

Sources: `export_dynamic_quantized_onnx_model` of sentence-transformers, whose files the Hugging Face Hub holds;
`DEFAULT_DTYPE_SUFFIX_MAPPING` and `scripts/convert.py` of transformers.js; the model files of sherpa-onnx.

Tests: `tests/publish/test_export.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxq.errors import RecipeError
from onnxq.text import did_you_mean


@dataclass(frozen=True)
class PublishedFile:
    """A file that a tool loads.

    Attributes:
        name: Path in the folder; `{model}` stands for the name of the float model without its ending.
        serves: The computer or setting that loads it, for the model card.
        target: The target that it is quantized for; None for the float model as it is.
        bits: Of weights in blocks of 32; None for the recipe `auto`.
        mode: What the scripts of transformers.js call such a file; None in other ecosystems and for float.

    """

    name: str
    serves: str
    target: str | None
    bits: int | None = None
    mode: str | None = None


@dataclass(frozen=True)
class FileConvention:
    """The files that an ecosystem loads.

    Attributes:
        ecosystem: Its name, for the model card.
        files: In the order of the table.
        left_out: Files of the ecosystem that onnxq does not write, and why; empty if there is none.
        settings: Name of a file that says how the others were quantized; empty if there is none.
        data_suffix: What the file with the weights of a large model has behind the name of the model.

    """

    ecosystem: str
    files: tuple[PublishedFile, ...]
    left_out: str = ""
    settings: str = ""
    data_suffix: str = ".data"


CONVENTIONS: dict[str, FileConvention] = {
    "hub": FileConvention(
        "Hugging Face Hub",
        (
            PublishedFile("onnx/model.onnx", "any, float", None),
            PublishedFile("onnx/model_qint8.onnx", "any processor", "cpu"),
            PublishedFile("onnx/model_qint8_avx512_vnni.onnx", "x86 with VNNI", "cpu-vnni"),
            PublishedFile("onnx/model_qint8_avx2.onnx", "x86 with AVX2 or AVX-512, without VNNI", "cpu-avx2"),
            PublishedFile("onnx/model_qint8_arm64.onnx", "Arm64", "cpu-arm64"),
        ),
        "model_quint8_avx2.onnx: the file for AVX2 has int8 weights, and says so in its name",
        data_suffix="_data",
    ),
    "transformers.js": FileConvention(
        "transformers.js",
        (
            PublishedFile("onnx/model.onnx", "dtype fp32", None),
            PublishedFile("onnx/model_quantized.onnx", "dtype q8, WebAssembly", "web", mode="q8"),
            PublishedFile("onnx/model_int8.onnx", "dtype int8, any processor", "cpu", mode="int8"),
            PublishedFile("onnx/model_q4.onnx", "dtype q4, a small download", "web", bits=4, mode="q4"),
        ),
        "model_fp16.onnx, model_q4f16.onnx, model_bnb4.onnx: onnxq writes no float16 and no NF4",
        "quantize_config.json",
        "_data",
    ),
    "sherpa": FileConvention(
        "sherpa-onnx",
        (
            PublishedFile("{model}.onnx", "float", None),
            PublishedFile("{model}.int8.onnx", "any processor", "cpu"),
        ),
        "{model}.fp16.onnx: onnxq writes no float16",
    ),
}


OTHER_NAMES = {
    **dict.fromkeys(("huggingface", "hf", "optimum", "sentence-transformers"), "hub"),
    **dict.fromkeys(("transformersjs", "xenova", "js", "web"), "transformers.js"),
    **dict.fromkeys(("sherpa-onnx", "k2"), "sherpa"),
}


def find_convention(name: str) -> FileConvention:
    """Return the convention of a name.

    Raises:
        RecipeError: There is none.

    """
    if name not in CONVENTIONS:
        near = did_you_mean(name, CONVENTIONS, elsewhere=OTHER_NAMES)
        hint = f"{near} Choose one of {', '.join(CONVENTIONS)}.".lstrip()
        raise RecipeError(f"there are no file names for '{name}'", hint)
    return CONVENTIONS[name]
