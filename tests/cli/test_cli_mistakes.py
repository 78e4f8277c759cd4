"""Mistakes of somebody new: each is named, with what was meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxq.calibration.calibrate import calibrate
from onnxq.errors import DataError, ModelError, OutputError
from onnxq.text import parse_size
from tests.helpers import build, floats, node, typed

HELP = "See `onnxq quantize --help`."
# what was typed → (a part of the message, a part of the hint)
MISTAKES: dict[str, tuple[str, str]] = {
    "quantize m.onnx --min-sqnr forty": ("invalid value for '--min-sqnr': 'forty' is no number", HELP),
    "quantize m.onnx --samples=3.5": ("invalid value for '--samples': '3.5' is no whole number", HELP),
    "quantize m.onnx -j auto": ("invalid value for '--jobs' / '-j': 'auto' is no whole number", HELP),
    "quantize m.onnx --samples 0": ("invalid value for '--samples': it has to be at least 1", HELP),
    "verify m.onnx --min-agreement 300": ("it has to be at most 100", "See `onnxq verify --help`."),
    "verify m.onnx --against m.onnx --min-agreement 0.99": (
        "--min-agreement is 0.99, and has to be a percentage, not a share of 1",
        "Write --min-agreement 99.",
    ),
    "quantize m.onnx -d": ("option '-d' requires an argument", HELP),
    "quantize m.onnx --fast=yes": ("option '--fast' does not take a value", HELP),
    "quantize m.onnx --dat x": ("no such option: --dat", f"Did you mean --data? {HELP}"),
    "quantize m.onnx --calibration-data x": ("no such option: --calibration-data", "Did you mean --data?"),
    "quantize m.onnx --ouput x": ("no such option: --ouput", "Did you mean --output?"),
    "quantize m.onnx --overwrite": ("no such option: --overwrite", "Did you mean --force?"),
    "quantize m.onnx --num-samples 3": ("no such option: --num-samples", "Did you mean --samples?"),
    "quantize m.onnx --device gpu": ("no such option: --device", "Did you mean --target?"),
    "quantize m.onnx --wbits 4": ("no such option: --wbits", "Did you mean --bits?"),
    "quantize m.onnx --precision int8": ("no such option: --precision", "Did you mean --recipe?"),
    "quantize m.onnx --json": ("no such option: --json", "Did you mean --format json?"),
    "verify m.onnx --baseline f.onnx": ("no such option: --baseline", "Did you mean --against?"),
    "inspect m.onnx --overwrite": ("no such option: --overwrite", "See `onnxq inspect --help`."),
    "quantize m.onnx --batch-size 3": ("no such option: --batch-size", "Batches are those of the data"),
    "quantize m.onnx --weight_type QInt8": ("no such option: --weight_type", "Types are set in a recipe file."),
    "quantize m.onnx --calibrate-method minmax": ("no such option: --calibrate-method", "set in a recipe file."),
    "quantize m.onnx --op-types Conv": ("no such option: --op-types", "as in --only Conv --only MatMul."),
    "quantize m.onnx --input-shape x:1,64": ("no such option: --input-shape", "are those of the first sample."),
    "verify m.onnx --min-cosine 99": ("at most 1, not 99", "It is a share, not a percentage: --min-cosine 0.99."),
    "verify m.onnx --min-cosine 300": ("at most 1, not 300", "See `onnxq verify --help`."),
    "quantize loop.onnx": ("loop.onnx is a link that leads back to itself", "Mend the link."),
    "quantize m.onnx -d loop.npz": ("loop.npz is a link that leads back to itself", "Mend the link."),
    "data m.onnx -d d.npz wrong.py scan.dcm": ("there is no place for 'wrong.py', 'scan.dcm'", "or give the folder"),
    "explain m.onnx product other": ("there is no place for 'other'", "by a pattern, as in 'Conv_*'."),
    "quantize m.onnx --debug": ("no such option: --debug", "Did you mean --verbose?"),
    "quantize --input m.onnx": ("no such option: --input", "without an option: `onnxq quantize m.onnx`."),
    "quantize --input_model=m.onnx": ("no such option: --input_model", "without an option: `onnxq quantize m.onnx`."),
    "inspect -i m.onnx": ("no such option: -i", "without an option: `onnxq inspect m.onnx`."),
    "quantize m.onnx --input d.npz": ("no such option: --input", "Did you mean --data?"),
    "quantize m.onnx --max-drop 1%": ("'1%' is no number", "in the metric's own unit: --max-drop 1."),
    "quantize m.onnx --min-sqnr 99%": ("'99%' is no number", "It is a number in dB, 20 is an error of a tenth"),
    "quantize m.onnx --min-sqnr=30dB": ("'30dB' is no number", "Write the number alone, in dB"),
    "quantize m.onnx --zzz": ("no such option: --zzz", HELP),
    "-d x": ("no such option: -d", "Options stand behind a command"),
    "verison": ("no such command 'verison'", "Write `onnxq --version`."),
    "quantize gone.onnx": ("gone.onnx is a link to nowhere.onnx, which does not exist", "Mend the link."),
    "quantize m.onnx -d gone.npz": ("gone.npz is a link to nowhere.npz, which does not exist", "Mend the link."),
    "quantize no*.onnx": ("no file matches no*.onnx", "Check the folder and the pattern."),
    "quantize m.onnx -d empty.npz": ("empty.npz is empty", "Save the data again."),
    "quantize m.onnx -d pipe.npz": ("pipe.npz is no regular file", "Save the data to a file first"),
    "quantize m.onnx -d wrong:f": ("cannot be imported: SyntaxError", "Mend the module: it fails by itself."),
    "quantize m.onnx -d absent:f": ("cannot be imported: ModuleNotFoundError", "looked for here and on PYTHONPATH."),
    "quantize m.onnx --output=": ("--output is empty", "Leave it out, or give a value"),
    "--quiet quantize m.onnx": ("no such option: --quiet", "Write it behind the command: `onnxq quantize … --quiet`."),
    "-f quantize m.onnx": ("no such option: -f", "Write it behind the command: `onnxq quantize … -f`."),
    "help quantize plan": ("no such command 'help'", "Write `onnxq help COMMAND`."),
    "help quantise": ("no such command 'quantise'", "Did you mean 'quantize'?"),
    "quantize https://a.b/c/m.onnx": (
        "error: https://a.b/c/m.onnx is an address, and models are read from files",
        "Download it first: curl -L -o m.onnx https://a.b/c/m.onnx",
    ),
    "inspect hf://a/m.onnx": ("hf://a/m.onnx is an address", "Download it first."),
    "verify m.onnx --against https://a.b/f.onnx": ("https://a.b/f.onnx is an address", "curl -L -o f.onnx"),
    "quantize m.onnx -d d.npz -o s3://a/q.onnx": (
        "s3://a/q.onnx is an address, and files are written to folders",
        "Name a file with --output.",
    ),
    "quantize m.onnx d.npz.d": ("there is no place for 'd.npz.d'", "If that is data, write `--data d.npz.d`."),
    "quantize m.onnx --int8": ("no such option: --int8", "Did you mean --recipe static-int8?"),
    "quantize m.onnx --dynamic": ("no such option: --dynamic", "Did you mean --recipe dynamic-int8?"),
    "quantize m.onnx -d d.npz --metric accuracy": ("'accuracy' is no metric", "Did you mean 'top1'?"),
    "quantize m.onnx -d d.npz --metric miou": ("'miou' is no metric", "Did you mean 'iou'?"),
    "quantize m.onnx -d scan.dcm": ("scan.dcm is a DICOM picture", "pydicom.dcmread('scan.dcm').pixel_array"),
    "quantize m.onnx -d eeg.edf": ("eeg.edf is an EDF recording", "mne.io.read_raw('eeg.edf').get_data()"),
    "quantise m.onnx": ("no such command 'quantise'", "Did you mean 'quantize'?"),
    "convert m.onnx": ("no such command 'convert'", "Did you mean 'quantize'?"),
    "info m.onnx": ("no such command 'info'", "Did you mean 'inspect'?"),
    "m.onnx": ("no such command 'm.onnx'", "Write `onnxq quantize m.onnx`."),
    "frobnicate": ("no such command 'frobnicate'", "Commands are calibrate, check, "),
    "quantize m.onnx -d a.npz b.npz c.npz": ("there is no place for 'b.npz', 'c.npz'", "as in -d a.npz -d b.npz"),
    "quantize m.onnx -d a.npz b.npz": ("there is no place for 'b.npz'", "Repeat --data for every file, as in -d a.npz"),
    "data m.onnx --preprocess rate=8 length=5": ("place for 'length=5'", "commas: --preprocess rate=8,length=5."),
    "quantize m.onnx --max-size 10 MB": ("there is no place for 'MB'", "Write the size in one word: 10MB."),
    "quantize m.onnx q.onnx": ("there is no place for 'q.onnx'", "name the output with --output"),
    "quantize m.onnx d.npz": ("there is no place for 'd.npz'", "Write `onnxq quantize m.onnx -d d.npz`."),
    "quantize d.npz m.onnx": ("there is no place for 'm.onnx'", "Write `onnxq quantize m.onnx -d d.npz`."),
    "verify m.onnx d.npz": ("d.npz is no model", "Write `onnxq verify m.onnx -d d.npz`."),
    "quantize sub/m.onnx": ("sub/m.onnx does not exist", "in a submodule of git: `git submodule update --init`"),
    "plan m.onnx a b c d e f": ("'a', 'b', 'c', 'd' and 2 more arguments", "See `onnxq plan --help`."),
    "verify m.int8.onnx --against m.onnx": ("m.int8.onnx does not exist", "Build it: `onnxq quantize m.onnx`."),
    "quantize mm.onnx": ("mm.onnx does not exist", "Did you mean 'm.onnx'?"),
    "quantize M.ONNX": ("M.ONNX does not exist", "Did you mean 'm.onnx'?"),
    "plan m": ("m does not exist", "Did you mean 'm.onnx'?"),
    "verify m.onnx m.int8.onnx": ("2 models are given", "Write `onnxq verify m.int8.onnx --against m.onnx` to compare"),
    "quantize m.onnx --per-channel": (
        "no such option: --per-channel",
        f"Weights have a scale for each channel. {HELP}",
    ),
    "quantize m.onnx --opset 17": ("no such option: --opset", "The opset is raised where a quantized form needs it."),
    "completion": ("no such command 'completion'", "Write `onnxq --install-completion`."),
    "data d.npz": ("d.npz is not a readable ONNX model: it is calibration data", "and these with --data."),
    "quantize m.onnx --memory 4": ("--memory 4 is less than any run takes", "Write a unit, as in --memory 4GB."),
    "quantize m.onnx --state y=x": ("--state says how data are read, but no data is given", "Add --data."),
    "plan m.onnx --max-length 5": ("--max-length says how data are read, but no data", "Add --data."),
    "verify m.onnx --preprocess size=3": ("--preprocess says how data are read, but no data", "Add --data."),
    "data m.onnx": ("no data is given", "Add --data."),
    "quantize m.onnx -d C:\\data\\d.npz": ("d.npz does not exist", "Write / between folders: C:/data/d.npz."),
    "merge d.npz.d -o s.npz": ("d.npz.d is a folder", "Give the file inside it."),
    "verify m.onnx --against m.onnx --max-abs -1": ("--max-abs is -1, and has to be 0 or more", "Write --max-abs 0.5."),
    "quantize m.onnx -o a.onnx --output b.onnx": ("--output is given 2 times", "Give it once."),
    "quantize m.onnx --min-sqnr 3 --min-sqnr=4": ("--min-sqnr is given 2 times", "Give it once."),
    "quantize m.onnx --max-size 300K": ("--max-size cannot be '300K'", "Write for example --max-size 10MB."),
    "verify q.onnx m.onnx": ("2 models are given", "Write `onnxq verify q.onnx --against m.onnx` to compare two; "),
    "verify a.onnx b.onnx c.onnx": ("3 models are given", "Give one; --project verifies those of the project."),
    "quantize m.onnx -r int8": ("there is no recipe named 'int8'", "The default, auto, computes in int8. Choose one"),
    "quantize m.onnx -r fp16": ("there is no recipe named 'fp16'", "onnxq writes 8 bits or fewer; other tools"),
    "quantize m.onnx -d d.npz --metric top1 --max-drop -1": ("max-drop is -1, and a metric", "Give how much worse"),
    "quantize m.onnx -d d.npz --min-sqnr 0.99": ("has to be a number of dB, not a share", "20 is an error of a tenth"),
    "verify m.onnx --against m.onnx --min-sqnr 0.9": ("and has to be a number of dB, not a share", "--min-sqnr 30."),
    "quantize my model.onnx -d d.npz": ("there is no place for 'model.onnx'", "has blanks: write 'my model.onnx'."),
    "quantize org/Some-Model": ("org/Some-Model does not exist", "`hf download org/Some-Model --local-dir Some-Model`"),
    "recipes static": ("there is no recipe named 'static'", "Did you mean 'static-int8'? Choose one of auto, "),
    "quantize zzz.onnx": ("zzz.onnx does not exist", "Check the path of the model."),
    "quantize -": ("a model is not read from stdin", "Save it to a file first"),
    "quantize m.onnx -d -": ("data are not read from stdin", "Save them to a file first"),
    "quantize m.onnx -o -": ("files are not written to stdout", "Name a file with --output."),
    "calibrate m.onnx -d d.npz -o -": ("files are not written to stdout", "Name a file with --output."),
    "quantize m.onnx \u2014data d.npz": ("'\u2014data' is no option", f"Write --data. {HELP}"),
    "quantize m.onnx -data d.npz": ("'-data' is no option", f"Write --data. {HELP}"),
    "quantize m.onnx -d d.npz -force": ("'-force' is no option", f"Write --force. {HELP}"),
    "quantize m.onnx -d d.npz -output=b.onnx": ("'-output=b.onnx' is no option", f"Write --output. {HELP}"),
    "quantize model=m.onnx data=d.npz": (
        "there is no place for 'data=d.npz'",
        "Write `onnxq quantize m.onnx -d d.npz`.",
    ),
    "quantize m.onnx -d d.npz -o out/": ("out/ names a folder", "Give the name of the file to write."),
    "quantize m.onnx -d d.npz --report r/": ("r/ names a folder", "Give the name of the file to write."),
    "quantize --model m.onnx": ("no such option: --model", "Write the model without an option"),
    "quantize m.onnx --fp16": ("no such option: --fp16", "onnxq writes 8 bits or fewer"),
    "quantize m.onnx --seed 1": ("no such option: --seed", "the same input gives the same bytes"),
    "quantize m.onnx --threads 4": ("no such option: --threads", "Did you mean --jobs?"),
    "targets": ("no such command 'targets'", "Write `onnxq quantize --help`, which lists them."),
    "explain m.onnx": ("missing argument 'NODE'", "`onnxq plan MODEL` lists the nodes. See `onnxq explain --help`."),
    "-V": ("no such option: -V", "Write `onnxq --version`."),
    "export m.onnx --for huggingface -o x": ("there are no file names for 'huggingface'", "Did you mean 'hub'? Choose"),
    "export m.onnx --for sherp -o x": (
        "there are no file names for 'sherp'",
        "Did you mean 'sherpa'? Choose one of hub,",
    ),
    "quantize -m.onnx": ("no such option: -m", "For the file of that name, write ./-m.onnx."),
    "quantize file:///a/m.onnx": ("/a/m.onnx is given as an address", "Write /a/m.onnx."),
    "quantize m.onnx --target gpu": ("there is no target named 'gpu'", "Did you mean 'tensorrt'? Choose one of cpu, "),
    "quantize m.onnx --target AVX512": ("there is no target named 'AVX512'", "Did you mean 'cpu-vnni'?"),
    "quantize m.onnx --target opnvino": ("there is no target named 'opnvino'", "Did you mean 'openvino'? Choose one"),
}


@pytest.mark.parametrize("typed_in", MISTAKES)
def test_a_mistake_is_named_with_what_was_meant(cli, here: Path, typed_in: str) -> None:
    message, hint = MISTAKES[typed_in]
    if "gone." in typed_in or "loop." in typed_in:
        Path("gone.onnx").symlink_to("nowhere.onnx")
        Path("gone.npz").symlink_to("nowhere.npz")
        Path("loop.onnx").symlink_to("loop.onnx")
        Path("loop.npz").symlink_to("loop.npz")
    if "my model" in typed_in:
        Path("m.onnx").rename("my model.onnx")
    if "-m.onnx" in typed_in:
        Path("m.onnx").rename("-m.onnx")
    Path("empty.npz").touch()
    os.mkfifo("pipe.npz")
    for name in ("scan.dcm", "eeg.edf"):
        Path(name).write_bytes(b"0       ")
    Path("d.npz.d").mkdir()
    Path(".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = https://a.b/sub\n')
    Path("wrong.py").write_text("def f(:\n")
    before = set(here.rglob("*"))
    result = cli(*typed_in.split())
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second
    assert set(here.rglob("*")) == before


def test_blanks_around_a_name_are_no_other_name(cli, here: Path) -> None:
    assert "Did you mean 'm.onnx'?" in cli("quantize", "m.onnx ").err


@pytest.mark.parametrize(
    ("outputs", "dtype", "nodes", "said"),
    [
        ((), np.float32, "MatMul", "it has no outputs\nhint: Export it again with its outputs."),
        (("y",), np.float64, "MatMul", "weight is float64, not float32 (1)\nhint: Export it in float32"),
        (("y",), np.float32, "Relu", "it has no weights\nhint: See every node's reason"),
        (("y",), np.float32, "MatMul", "(1)\nhint: --recipe static-int8 or dynamic-int8 quantizes it all the same."),
    ],
)
def test_nothing_to_quantize_has_its_remedy(
    cli, here: Path, outputs: tuple[str, ...], dtype: type, nodes: str, said: str
) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = [numpy_helper.from_array(floats(8, 4).astype(dtype), "w")] if nodes == "MatMul" else []
    made = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    node_ = helper.make_node(nodes, ["x", "w"][: 1 + len(weights)], ["y"])
    graph = helper.make_graph([node_], "g", [helper.make_tensor_value_info("x", kind, ["n", 8])], made, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "odd.onnx")
    np.savez("odd.npz", x=floats(20, 8))
    result = cli("quantize", "odd.onnx", "-d", "odd.npz")
    assert result.code == 1
    assert said in result.err


def test_a_linear_model_of_scikit_learn_is_told_where_its_weights_are(cli, here: Path) -> None:
    attributes = {"coefficients": [1.0, 2.0], "intercepts": [0.5]}
    linear = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.DOUBLE, ["n", 2])], [value("y", TensorProto.FLOAT, ["n", 1])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(helper.make_graph([linear], "g", inputs, outputs), opset_imports=opsets, ir_version=8)
    onnx.save(model, "linear.onnx")
    result = cli("quantize", "linear.onnx")
    assert result.code == 1
    assert "its weights are attributes of LinearRegressor\nhint: Nothing is to be done" in result.err


@pytest.mark.parametrize("arguments", [("quantize", ""), ("quantize", "m.onnx", "-d", ""), ("inspect", "")])
def test_an_empty_argument_is_not_the_working_folder(cli, here: Path, arguments: tuple[str, ...]) -> None:
    what = "-d" if "-d" in arguments else "an argument"
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {what} is empty\nhint: Leave it out, or give a value")


def test_help_and_version_are_commands_as_elsewhere(cli) -> None:
    assert cli("help") == cli("--help")
    assert cli("help", "plan") == cli("plan", "--help")
    assert cli("version") == cli("--version")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-d gone.npz", 2, "gone.npz does not exist"),
        ("-d wrong.npz", 2, "input 'x' has 64 in dimension 1"),
        ("-x *", 1, "no node of m.onnx can be quantized: --exclude * leaves it float"),
        ("--stats gone.npz", 2, "gone.npz does not exist"),
        ("-d d.npz", 2, "q.onnx exists already"),
    ],
)
def test_an_old_output_is_named_when_nothing_else_is_wrong(
    cli, here: Path, options: str, code: int, message: str
) -> None:
    np.savez("wrong.npz", x=floats(8, 63))
    Path("q.onnx").write_text("old")
    result = cli("quantize", "m.onnx", "-o", "q.onnx", *options.split())
    assert (result.code, result.out, Path("q.onnx").read_text()) == (code, "", "old")
    assert message in result.err.splitlines()[0]


def test_backslashes_are_part_of_a_name(cli, here: Path) -> None:
    result = cli("quantize", "m.onnx", "-d", "d.npz", "--fast", "-o", "folder\\q.onnx")
    if os.sep == "/":
        assert "is the name of one file here: write / between folders" in result.err
        assert "Write / between folders: sub/m.onnx." in cli("inspect", "sub\\m.onnx").err
    assert result.code == 0


def test_a_working_folder_that_is_gone(cli, here: Path) -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()
    result = cli("quantize", "../m.onnx", "-d", "../d.npz", "--fast", "-f")
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-2] == "error: the working folder has been deleted"


def test_a_model_compared_with_itself_is_noticed(cli, here: Path) -> None:
    result = cli("verify", "m.onnx", "--against", "m.onnx", "-d", "d.npz")
    assert result.code == 0
    assert "warning: m.onnx is compared with itself (same-model). Give the float model with --against.\n" in result.err
    assert "slower" not in result.err
    Path("c.onnx").write_bytes(Path("m.onnx").read_bytes())
    err = cli("verify", "m.onnx", "--against", "c.onnx", "-d", "d.npz").err
    assert "warning: m.onnx and c.onnx are the same model (same-model)." in err


def test_no_hint_is_made_up_for_what_is_like_nothing(cli, here: Path) -> None:
    assert "Did you mean" not in cli("quantize", "m.onnx", "--batch-size", "3").err
    assert "Did you mean" not in cli("quantize", "m.onnx", "--target", "zzz").err


def test_a_type_that_an_output_does_not_have_is_named(cli, here: Path) -> None:
    proto = onnx.load("m.onnx")
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(proto, "odd.onnx")
    err = cli("quantize", "odd.onnx", "-d", "d.npz").err
    assert "node 'product': its output 'y' is float, and the file says int64\nhint: " in err


def test_an_odd_ending_is_noted(cli, here: Path) -> None:
    result = cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "x.txt")
    assert (result.code, result.err) == (0, "x.txt is an ONNX model: most tools look for the ending .onnx\n")
    assert cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "x.onnx").err == ""


def test_models_that_are_swapped_are_noticed(cli, here: Path) -> None:
    assert cli("quantize", "m.onnx", "-r", "dynamic-int8", "-o", "q.onnx").code == 0
    result = cli("verify", "m.onnx", "--against", "q.onnx", "-d", "d.npz")
    assert "warning: m.onnx is not quantized, and q.onnx is (" in result.err
    assert "Write `onnxq verify q.onnx --against m.onnx`." in result.err
    assert "slower" not in result.err
    assert (
        cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "w.onnx").code == 0
    )  # neither Q/DQ nor integer operators
    assert "and w.onnx is (made by onnxq)" in cli("verify", "m.onnx", "--against", "w.onnx", "-d", "d.npz").err
    for right in (("q.onnx", "m.onnx"), ("q.onnx", "q.onnx"), ("m.onnx", "m.onnx")):
        assert "swapped-models" not in cli("verify", right[0], "--against", right[1], "-d", "d.npz").err


def test_weights_that_are_only_stored_in_8_bit_count_as_quantized(cli, here: Path) -> None:
    assert cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "w.onnx").code == 0
    assert cli("quantize", "m.onnx", "-r", "dynamic-int8", "-o", "q.onnx").code == 0
    assert "warning" not in cli("verify", "w.onnx", "--against", "q.onnx", "-d", "d.npz").err


def test_an_output_of_nothing_but_nan_is_not_called_equal(cli, here: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Sqrt", "h", "y")]
    onnx.save(build(nodes, {"x": ["n", 64]}, weights={"w": -np.eye(64, dtype=np.float32)}), "nan.onnx")
    np.savez("positive.npz", x=np.abs(floats(20, 64)) + 1)
    assert cli("quantize", "nan.onnx", "-r", "weight-int8", "-o", "q.onnx").code == 0
    result = cli("verify", "q.onnx", "--against", "nan.onnx", "-d", "positive.npz")
    assert result.code == 1
    assert "equal" not in next(line for line in result.out.splitlines() if line.startswith("  y "))
    assert "warning: 'y' is NaN in the float model, every time: it was not compared (nothing-compared)" in result.err
    assert "error: q.onnx: output 'y' is NaN in the float model, every time: there is nothing to compare" in result.err


def test_an_operator_that_is_misspelt_is_named_with_what_was_meant(cli, here: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "h w", "y", name="odd")]
    model = build(nodes, {"x": ["n", 64]}, weights={"w": floats(64, 64)})
    model.graph.node[1].op_type = "Matmul"
    onnx.save(model, "odd.onnx")
    err = cli("quantize", "odd.onnx", "-d", "d.npz", "-r", "dynamic-int8").err
    assert " has no such operator\nhint: Did you mean 'MatMul'? Export the model again.\n" in err


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sequence", "input 'x' is of the kind sequence, and samples are tensors"),
        ("optional", "input 'x' is of the kind optional, and samples are tensors"),
        ("bfloat16", "input 'x' is bfloat16[n, 64], which onnxruntime does not compute with on a CPU"),
    ],
)
def test_an_input_that_cannot_be_fed_is_named(cli, here: Path, kind: str, said: str) -> None:
    plain = onnx.TensorProto.BFLOAT16 if kind == "bfloat16" else onnx.TensorProto.FLOAT
    tensor = helper.make_tensor_type_proto(plain, ["n", 64])
    make = {"sequence": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}
    given = helper.make_value_info("x", make[kind](tensor) if kind in make else tensor)
    reader = {"sequence": ("ConcatFromSequence", {"axis": 0}), "optional": ("OptionalGetElement", {})}
    operator, attributes = reader.get(kind, ("Cast", {"to": onnx.TensorProto.FLOAT}))
    nodes = [helper.make_node(operator, ["x"], ["h"], **attributes), helper.make_node("MatMul", ["h", "w"], ["y"])]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [given], [result], [numpy_helper.from_array(floats(64, 64), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), "odd.onnx")
    for arguments in ((), ("-d", "d.npz")):
        code, _, err = cli("quantize", "odd.onnx", "-r", "weight-int8", *arguments)
        assert (code, err.splitlines()[0]) == (2, f"error: {said}")


def test_weights_in_a_sparse_initializer_are_named(cli, here: Path) -> None:
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 9], np.int64), "places")
    onnx.save(build([node("Relu", "x", "y")], {"x": ["n", 64]}), "odd.onnx")
    model = onnx.load("odd.onnx")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [64, 4]))
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n", 4]))
    onnx.save(model, "odd.onnx")
    assert "its weights are sparse initializers" in cli("quantize", "odd.onnx").err


@pytest.mark.parametrize(("wrong", "what"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_weight_that_is_not_finite_is_named_in_place_of_samples(wrong: float, what: str) -> None:
    weight = floats(4, 4)
    weight[1, 1] = wrong
    nodes = [node("MatMul", "x w", "h", name="product"), node("Relu", "h", "y")]
    model = typed(build(nodes, {"x": ["n", 4]}, weights={"w": weight}))
    value = model.graph.find("h")
    assert value is not None
    with pytest.raises(ModelError, match=rf"weight 'w' \(read by product\) holds {what}") as caught:
        calibrate(model, [value], [{"x": np.ones((1, 4), np.float32)}])
    assert "sound weights" in caught.value.hint


def test_samples_stay_to_blame_where_a_mask_holds_infinity() -> None:
    nodes = [node("Log", "x", "h", name="log"), node("Add", "h m", "y")]
    model = typed(build(nodes, {"x": ["n", 4]}, weights={"m": np.array([0, 0, 0, -np.inf], np.float32)}))
    value = model.graph.find("h")
    assert value is not None
    with pytest.raises(DataError, match="tensor 'h' holds NaN"):
        calibrate(model, [value], [{"x": -np.ones((1, 4), np.float32)}])


def test_a_report_that_cannot_be_written_leaves_the_model_and_says_so(cli, here: Path, monkeypatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OutputError("r.json cannot be written (No space left on device)", "Make room.")

    monkeypatch.setattr("onnxq.report.write_report", full)
    result = cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "q.onnx", "--report", "r.json")
    assert (result.code, result.out) == (2, "")
    message = "error: r.json cannot be written (No space left on device); the model q.onnx is written\n"
    assert result.err == f"{message}hint: Make room.\n"
    assert Path("q.onnx").exists()


def test_ctrl_c_while_a_report_is_written_says_what_there_is(cli, here: Path, monkeypatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("onnxq.report.write_report", interrupted)
    result = cli("quantize", "m.onnx", "-r", "weight-int8", "-o", "q.onnx", "--report", "r.json")
    assert (result.code, result.out) == (130, "")
    assert result.err == "not written: r.json; the model q.onnx is\ninterrupted\n"
    assert Path("q.onnx").exists()


def test_a_weight_that_is_not_finite_is_named_by_quantize_and_verify(cli, here: Path) -> None:
    weight = floats(64, 64)
    weight[1, 1] = np.nan
    onnx.save(build([node("MatMul", "x w", "y", name="product")], {"x": ["n", 64]}, weights={"w": weight}), "nan.onnx")
    sentence = "weight 'w' (read by product) holds NaN"
    result = cli("quantize", "nan.onnx", "-d", "d.npz")
    assert (result.code, result.out) == (2, "")
    assert "the weight holds NaN or infinity" in result.err
    result = cli("verify", "nan.onnx")
    assert (result.code, f"error: {sentence}" in result.err) == (1, True)
    with_bias = [node("MatMul", "x w", "h", name="product"), node("Add", "h b", "y", name="sum")]
    bias = np.full(64, np.nan, np.float32)
    onnx.save(build(with_bias, {"x": ["n", 64]}, weights={"w": floats(64, 64), "b": bias}), "bias.onnx")
    result = cli("quantize", "bias.onnx", "-r", "weight-int8")
    assert result.code == 0
    assert "warning: bias.onnx: weight 'b' (read by sum) holds NaN. Export the model again" in result.err


@pytest.mark.parametrize("written", ["1KB", "1kb", "1 kB", "1000b", "0.001mb", "0.000000001TB"])
def test_units_are_read_in_any_case(written: str) -> None:
    assert parse_size(written) == 1000


def test_two_models_that_are_not_one_are_told_apart_before_data_are_blamed(cli, here: Path) -> None:
    weights = {"w": floats(64, 64)}
    onnx.save(build([node("MatMul", "z w", "y")], {"z": ["n", 64]}, weights=weights), "other.onnx")
    result = cli("verify", "m.onnx", "--against", "other.onnx", "-d", "d.npz")
    assert result.code == 2
    assert "error: m.onnx takes 'x', and other.onnx does not: neither was made from the other" in result.err


def test_a_fast_run_that_misses_a_limit_is_told_to_search(cli, here: Path) -> None:
    result = cli("quantize", "m.onnx", "-d", "d.npz", "--fast", "--min-sqnr", 200)
    assert result.code == 1
    assert "hint: Leave out --fast: then what loses most stays float until the limit is met." in result.err


def test_a_name_that_begins_with_a_dash_can_be_pasted(cli, here: Path) -> None:
    Path("m.onnx").rename("-m.onnx")
    result = cli("quantize", "-d", "d.npz", "--fast", "--", "-m.onnx")
    assert result.code == 0
    assert "onnxq verify ./-m.int8.onnx --against ./-m.onnx -d d.npz" in result.out
    assert cli("quantize", "-d", "d.npz", "--fast", "--report", "r.json", "-f", "--", "-m.onnx").code == 0
    assert "onnxq quantize ./-m.onnx " in json.loads(Path("r.json").read_text())["command"]


def test_names_with_blanks_can_be_pasted(cli, here: Path) -> None:
    Path("m.onnx").rename("my m.onnx")
    Path("d.npz").rename("my d.npz")
    for typed_in, meant in (
        (("quantize", "my m.onnx", "my d.npz"), "onnxq quantize 'my m.onnx' -d 'my d.npz'"),
        (("my m.onnx",), "onnxq quantize 'my m.onnx'"),
        (("verify", "my m.onnx", "my d.npz"), "onnxq verify 'my m.onnx' -d 'my d.npz'"),
        (("verify", "my m.onnx", "my q8.onnx"), "onnxq verify 'my q8.onnx' --against 'my m.onnx'"),
    ):
        result = cli(*typed_in)
        assert result.code == 2
        assert f"Write `{meant}`" in result.err
    assert "there is no place for 'my d.npz'\n" in cli("quantize", "my m.onnx", "my d.npz").err
    Path("sub").mkdir()
    Path("my m.onnx").rename("sub/m.onnx")
    made = cli("quantize", "sub/m.onnx", "-r", "dynamic-int8", "-o", "q.onnx", "--report", "r.json")
    assert made.code == 0
    swapped = cli("verify", "sub/m.onnx", "--against", "q.onnx", "-d", "my d.npz").err
    assert "Write `onnxq verify q.onnx --against sub/m.onnx`." in swapped


def test_names_that_steer_a_terminal_are_written_as_escapes(cli, here: Path) -> None:
    model, data = "a\n\x1b[31mm.onnx", "a\n\x1b[31md.npz"
    Path("m.onnx").rename(model)
    Path("d.npz").rename(data)
    for command in (("verify", model), ("data", model, "-d", data)):
        result = cli(*command)
        assert result.code == 0
        assert "\x1b" not in result.out
        assert "a \\x1b[31m" in result.out.splitlines()[0]


def test_a_glob_that_matches_nothing_is_a_warning(cli, here: Path) -> None:
    result = cli("quantize", "m.onnx", "-d", "d.npz", "--fast", "-x", "Foo*", "-x", "Soft*")
    assert result.code == 0
    assert result.err.count("(ignored-option)") == 2
    assert "warning: no node matches --exclude Foo* (ignored-option). `onnxq plan` shows the names" in result.err


@pytest.mark.parametrize(
    ("glob", "said"),
    [
        ("Foo,Bar", ": for several, the option is repeated"),
        ("Foo_{0,1}", ": for several, the option is repeated"),
        ("Foo_.*", ": * stands for any signs, it is no regular expression"),
        ("^Foo", ": * stands for any signs, it is no regular expression"),
    ],
)
def test_a_glob_that_is_a_list_or_a_regular_expression_is_told_so(cli, here: Path, glob: str, said: str) -> None:
    result = cli("plan", "m.onnx", "-x", glob)
    assert f"warning: no node matches --exclude {glob}{said} (ignored-option)" in result.err


@pytest.mark.parametrize(
    "command",
    [
        "quantize m.onnx --fast -f",
        "verify m.onnx --against m.onnx",
        "plan m.onnx",
        "data m.onnx",
        "calibrate m.onnx -o s",
    ],
)
def test_a_setting_without_effect_is_told_once(cli, here: Path, command: str) -> None:
    words = (*command.split(), "-d", "d.npz", "--preprocess", "mean=0.5")
    recipe = ("-r", "static-int8") if "calibrate" in command else ()
    result = cli(*words, *recipe)
    assert (result.out + result.err).count("'preprocess' has no effect") == 1


def test_seven_bits_for_weights_that_are_only_stored_are_no_use(cli, here: Path) -> None:
    said = "warning: --reduce-range has no effect: weights are only stored in few bits (ignored-option)"
    for recipe, told in (("weight-int8", True), ("dynamic-int8", False)):
        result = cli("quantize", "m.onnx", "-r", recipe, "--reduce-range", "--dry-run")
        assert (result.code, said in result.err) == (0, told)


def test_layers_of_two_float_models_are_those_of_both(cli, folder: Path) -> None:
    Path("copy.onnx").write_bytes(Path("digits_cnn.onnx").read_bytes())
    run = ("--against", "digits_cnn.onnx", "-d", "digits_calibration.npz")
    assert "layer that adds most" not in cli("verify", "copy.onnx", *run).out
    model = onnx.load("digits_cnn.onnx")
    model.producer_name = "another"
    onnx.save(model, "copy.onnx")
    assert "layer that adds most" not in cli("verify", "copy.onnx", *run).out  # all layers are exact


def test_a_size_without_its_unit_is_refused_before_any_work(cli, here: Path) -> None:
    result = cli("quantize", "m.onnx", "-d", "d.npz", "--max-size", "5")
    first, second = result.err.splitlines()
    assert result.code == 1
    assert first.startswith("error: no model has 5 bytes or fewer: the weights alone take ")
    assert second == "hint: Write a unit, as in 5MB."


def test_text_for_a_model_whose_inputs_are_not_named_like_token_ids(cli, here: Path) -> None:
    ids = node("Gather", "table src", "y")
    onnx.save(build([ids], {"src": (onnx.TensorProto.INT64, ["b", "n"])}, ["y"], {"table": floats(40, 8)}), "t.onnx")
    Path("s.txt").write_text("one\ntwo\n")
    first, second = cli("quantize", "t.onnx", "-d", "s.txt").err.splitlines()
    assert first == "error: s.txt is text, and no input of the model is named like token ids, such as input_ids"
    assert second.startswith("hint: Tokenize it yourself, and save samples: numpy.savez('data.npz', src=array)")


def test_ids_beyond_the_vocabulary_are_named_by_row(cli, here: Path) -> None:
    ids = node("Gather", "table ids", "y")
    onnx.save(build([ids], {"ids": (onnx.TensorProto.INT64, ["b", "n"])}, ["y"], {"table": floats(40, 64)}), "t.onnx")
    np.savez("ids.npz", ids=np.random.default_rng(0).integers(30, 90, (20, 6)))
    first, second = cli("quantize", "t.onnx", "-d", "ids.npz").err.splitlines()
    assert first.startswith("error: onnxruntime cannot run the float model: Gather node")
    assert first.endswith("of a table whose last row is 39")
    assert second == (
        "hint: The ids are those of another model: take its own tokenizer, or the classes that it was trained on."
    )


def test_a_size_that_only_the_runtime_refuses_is_said_in_words(cli, here: Path) -> None:
    relu = node("MatMul", "x w", "y")
    onnx.save(build([relu], {"x": (onnx.TensorProto.FLOAT, [0, 64])}, ["y"], {"w": floats(64, 32)}), "z.onnx")
    np.savez("x.npz", x=floats(20, 64))
    first, _ = cli("quantize", "z.onnx", "-d", "x.npz").err.splitlines()
    assert first.startswith("error: onnxruntime cannot run the float model")
    assert first.endswith(": input 'x' has 1 in dimension 0, and the model takes 0")
