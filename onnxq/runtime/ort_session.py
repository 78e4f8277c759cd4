"""One onnxruntime session on the CPU: quiet, and with errors of our own.

Tests: `tests/runtime/test_ort_session.py`, `tests/ir/test_schemas.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

from onnxq.errors import ModelError
from onnxq.targets.host import host_saturates, processor_limit
from onnxq.text import did_you_mean

Optimization = Literal["none", "basic", "extended", "all"]
_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
LIBRARIES: list[str] = []  # of custom operators, which every session is to know
# From opset 21 on, 1.31 states the type on Q/DQ nodes that it moves. It then makes int8 zero points uint8 ones. So a
# sound model for another runtime does not load, unless int8 may stay.
MISMATCH = "output_dtype INT8 does not match y_zero_point type UINT8"
FATAL = 4  # log severity: errors are raised, so nothing below a crash needs to be printed as well
# Phrases of onnxruntime about a model that it refuses, and plain ones, which begin with operator and name
ORT_PHRASES = (
    (r"^Node \((.*?)\) Op \((\w+)\) \[\w*Error\] ", r"\2 node '\1': "),
    (r"^This is an invalid model\. In Node, \(\"(.*?)\", (\w+), .*?, Error (?:Node\s*\(.*?\) ?)?", r"\2 node '\1': "),
    (
        r"^This is an invalid model\. Type Error: Type '\w+\((\w+)\)' of input parameter \((.*?)\) of operator"
        r" \((\w+)\) in node \((.*?)\) is invalid\.$",
        r"\3 node '\4': its input '\2' is \1, which the operator does not take",
    ),
    (
        r"^Type Error: Type \(tensor\((\w+)\)\) of output arg \((.*?)\) of node \((.*?)\) does not match expected type"
        r" \(tensor\((\w+)\)\)\.$",
        r"node '\3': its output '\2' is \4, and the file says \1",
    ),
    (r"^ONNX Runtime only \*guarantees\* support .* Opset (\d+) is under development.*", r"it does not know opset \1"),
    (
        r"^Unsupported model IR version: (\d+), max supported IR version: (\d+)$",
        r"it has IR version \1, and this onnxruntime reads those up to \2",
    ),
    (
        r"(?:^|(?<=: ))(?:(?!: ).)+ was false\. The input tensor cannot be reshaped to the requested shape\. "
        r"Input shape:\{([^}]*)\}, requested shape:\{([^}]*)\}",
        r"its input [\1] cannot have the shape [\2]",
    ),
    (r"^Failed to load library (\S+) with error: (?:\1: )?", ""),
    (r"No Op registered for (\S+) with domain_version of (\d+)$", r"opset \2 has no such operator"),
    (r"Op registered for (\S+) is deprecated in domain_version of (\d+)$", r"opset \2 no longer has this operator"),
    (
        r"^(?:Fatal error: )?(\S*):(\w+)\(-?\d+\) is not a registered function/op$",
        r"it has no operator \2 of domain \1",
    ),
    (
        r"indices element out of data bounds, idx=(-?\d+) must be within the inclusive range \[-?\d+,(\d+)\]",
        r"it reads row \1 of a table whose last row is \2",
    ),
    (
        r"Got invalid dimensions for input: (\S+) for the following indices index: (\d+) Got: (\d+) Expected: (\d+).*$",
        r"input '\1' has \3 in dimension \2, and the model takes \4",
    ),
    (
        r"Invalid rank for input: (\S+) Got: (\d+) Expected: (\d+).*$",
        r"input '\1' has \2 dimensions, and the model takes \3",
    ),
    # Sizes that do not fit, and names that onnxruntime gives nodes which it changes
    (r"^(\w+ node '[^']*?)(?:_nchwc|/MatMulAddFusion)'", r"\1'"),
    (r"(\w+ node ')fused ", r"\1"),
    (r"Invalid input shape: \{([^}]*)\}$", r"its window is larger than its input [\1]"),
    (r"GEMM: Dimension mismatch, W: \{([^}]*)\} K: (\d+) N:\d+$", r"its weight [\1] does not fit rows of \2 values"),
    (r"MatMul dimension mismatch$", "the shapes of its inputs do not fit"),
    (r"(?:left|right) operand cannot broadcast on dim \d+$", "the shapes of its inputs do not fit"),
    (
        r"Input W must have shape \{[^}]*,(\d+)\}\. Actual:\{[^}]*,(\d+)\}$",
        r"it reads \2 values at a step, and gets \1",
    ),
    (
        r"axis == 1 \|\| axis == largest was false\. Attempting to broadcast an axis by a dimension other than 1\. "
        r"(\d+) by (\d+)$",
        r"its inputs have \1 and \2 in one dimension",
    ),
    (
        r"Non concat axis dimensions must match: Axis (\d+) has mismatched dimensions of (\d+) and (\d+)$",
        r"its inputs have \2 and \3 in dimension \1",
    ),
    (
        r"Input channels C is not equal to kernel channels \* group\. C: (\d+) kernel channels: (\d+) group: (\d+)$",
        r"its input has \1 channels, and its weight takes \2 in each of \3 groups",
    ),
    (
        r"filter number not equal to input channel number\. filter_number: (\d+) num_input_channels: (\d+)$",
        r"its input has \2 channels, and its weight takes \1",
    ),
    (
        r"Pad reflect: (?:pre|post)-pad \((\d+)\) exceeds maximum allowed \(\d+\) for axis (\d+)\. "
        r"Input shape:\{([^}]*)\}$",
        r"it mirrors \1 values of dimension \2, and its input is [\3]",
    ),
    (r"invalid expand shape$", "its input cannot be expanded to the shape asked for"),
    (
        r"input_shape\[i\] == 1 was false\. Dimension of input (\d+) must be 1 instead of \d+\. shape=\{([^}]*)\}$",
        r"it drops dimension \1 of its input [\2], which is not 1",
    ),
    (
        r"k argument \[(\d+)\] should not be greater than specified axis dim value \[(\d+)\]$",
        r"it picks \1 of only \2 values",
    ),
    (r"^Exception during initialization: ", ""),
    (r"\bfalse was false\. ", ""),
    (r" in \.$", ""),
)
NO_OPERATOR = "it has no operator"  # of a domain, in words of `reason`
NEEDS_LIBRARY = "Give the library of its custom operators with --custom-ops; other versions of onnxruntime may know it."
UNKNOWN_OPERATOR = re.compile(r"(\w+) node .*has no such operator")
# Everything that onnxruntime raises; they share no base class of their own
ORT_ERRORS: tuple[type[Exception], ...] = (
    *(e for e in vars(native).values() if isinstance(e, type) and issubclass(e, Exception)),
    RuntimeError,
    ValueError,
)


def check_path(path: str) -> None:
    """Refuse a path that onnx and onnxruntime cannot be told, which take UTF-8 alone.

    Raises:
        ModelError: It holds other bytes.

    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"{path}: onnxruntime opens no file whose path is not UTF-8", "Rename it.") from error


class SessionError(Exception):
    """onnxruntime refused a model or a run; the message is its reason on one line."""


@dataclass(frozen=True)
class Settings:
    """How sessions are made.

    Attributes:
        optimize: Level of graph optimisation.
        threads: Threads for one operator; 0 lets onnxruntime choose, within the limit of this process.
        reuse_shapes: Keep a memory plan for every combination of input shapes seen. It saves allocations when shapes
            repeat, and grows without bound when they do not.
        save_to: Where to write the optimised model, if anywhere.
        without: Names of optimisations to leave out.
        exact: Compute products of integers exactly, on processors that saturate, too. There int8 weights become
            uint8 ones when the model is loaded, which takes longer at every run.

    """

    optimize: Optimization = "all"
    threads: int = 0
    reuse_shapes: bool = True
    save_to: str = ""
    without: tuple[str, ...] = ()
    exact: bool = False

    def options(self) -> ort.SessionOptions:
        """Make options for onnxruntime."""
        options = ort.SessionOptions()
        options.log_severity_level = FATAL
        options.graph_optimization_level = _LEVELS[self.optimize]
        options.intra_op_num_threads = self.threads or processor_limit()
        options.enable_mem_pattern = self.reuse_shapes
        # Threads that wait for work take the processor from NumPy and from other programs. A run of a small
        # EfficientNet took 29 ms in place of 21 on two busy cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.exact and host_saturates():
            # onnxruntime/core/optimizer/avx2_weight_s8_to_u8.cc. Products of others are exact as they are, and kernels
            # of uint8 weights take two to three times as long there
            options.add_session_config_entry("session.x64quantprecision", "1")
        for library in LIBRARIES:
            options.register_custom_ops_library(library)
        if self.save_to:
            options.optimized_model_filepath = self.save_to
        return options


def load_native(
    model: bytes | str,
    settings: Settings,
    *,
    weights: Mapping[str, ort.OrtValue] | None = None,
    copy: bool = False,
    pack: bool = False,
    copies: Mapping[str, ort.OrtValue] | None = None,
) -> ort.InferenceSession:
    """Load a model.

    Args:
        model: Its bytes, or its path.
        settings: How.
        weights: Initializers that the bytes call external data of the folder `/`: they are used where they are, and
            have to stay there. Given, if only as an empty mapping, sessions keep no memory that they do not use.
        copy: Whether optimisations may look at the elements of those, for which onnxruntime copies them.
        pack: Whether kernels may lay them out in advance, in as much memory again. MatMulNBits then computes in
            integers where it is asked to, and in float otherwise.
        copies: Initializers that the bytes call external data likewise, to make the same of as if they were inside.

    Raises:
        SessionError: onnxruntime cannot load it.
        ModelError: Its path is no UTF-8.

    """
    if isinstance(model, str):
        check_path(model)
    options = settings.options()
    if weights is not None:
        options.enable_cpu_mem_arena = False  # many such sessions stand open: none is to keep what it used last
    if weights:
        # Packed weights would be copies, too. If only the second call below is made, all weights are copies.
        options.add_session_config_entry("session.disable_prepacking", "0" if pack else "1")
        for name, array in weights.items():
            options.add_initializer(name, array)
    looked_at = copies or (weights if copy else None)
    if weights or looked_at:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
    if looked_at:
        options.add_external_initializers(list(looked_at), list(looked_at.values()))
    # Without its fallback, which prints to stdout and loads once more with the same provider.
    given: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "enable_fallback": 0}
    if settings.without:
        given["disabled_optimizers"] = list(settings.without)
    try:
        try:
            return ort.InferenceSession(model, options, **given)
        except ORT_ERRORS as error:
            if MISMATCH not in str(error):
                raise
            options.add_session_config_entry("session.qdqisint8allowed", "1")
            return ort.InferenceSession(model, options, **given)
    except ORT_ERRORS as error:
        raise SessionError(reason(error)) from error


def load_hint(error: SessionError) -> str:
    """Say what to do about a float model that onnxruntime does not load."""
    if NO_OPERATOR in str(error):
        return NEEDS_LIBRARY
    found = UNKNOWN_OPERATOR.search(str(error))
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} if found else set()
    guess = did_you_mean(found[1], sorted(names), cutoff=0.75) if found and found[1] not in names else ""
    return f"{guess} Export the model again.".lstrip() if guess else "It does not load as it is: export it again."


def reason(error: BaseException) -> str:
    """Cut onnxruntime's message down to what a user can read: one line without codes, source files and function names.

    `[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. Name:'/a/Add' Status Message:
    /onnxruntime_src/…/element_wise_ops.h:563 void …::Init(…) axis == 1 was false. 4 by 5` becomes
    `Add node '/a/Add': axis == 1 was false. 4 by 5`.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .+? (?:failed: ?)?(?=Node |This is|Fatal|ONNX Runtime|\S+\.cc)", "", text)
    text = re.sub(
        r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: ",
        lambda m: f"{m[1]} node{' ' + repr(m[2]) if m[2] else ''}: ",
        text,
    )
    text = re.sub(r"\S*onnxruntime\S*\.(?:h|cc|cpp):\d+ (?:[^()]*\([^()]*\)(?: const)? )?", "", text)
    text = re.sub(r"\b\w+\.(?:h|cc|cpp):\d+ (?:\w+ )?", "", text)  # of 1.32: file, line and function, each one word
    for pattern, instead in ORT_PHRASES:
        text = re.sub(pattern, instead, text)
    return text
