"""`--target` of quantize, plan and calibrate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxq.ir import load
from onnxq.pipeline.options import declarations
from onnxq.targets.target import target_names

DATA = ("-d", "digits_calibration.npz", "--samples", 8)


def test_a_model_for_another_runtime_says_so(cli, folder: Path) -> None:
    code, out, _ = cli(
        "quantize", "digits_cnn.onnx", *DATA, "--fast", "-o", "q.onnx", "--target", "tensorrt", "--format", "json"
    )
    assert code == 0
    assert 'target = "tensorrt"' in load("q.onnx").metadata["onnxq_recipe"]
    assert 'target = "tensorrt"' in json.loads(out)["rules"]
    zeros = [one.inputs[2] for one in load("q.onnx").graph.nodes if one.op_type == "QuantizeLinear"]
    assert zeros
    assert all(zero is not None and zero.constant is not None and not zero.constant.numpy().any() for zero in zeros)


def test_the_plan_is_another_one(cli, folder: Path) -> None:
    plans = {}
    for options in ((), ("--target", "cpu"), ("--target", "qnn")):
        code, out, _ = cli("plan", "digits_cnn.onnx", *DATA[:2], *options, "--format", "json")
        assert code == 0
        plans[options[-1:]] = json.loads(out)
    assert plans[()]["nodes"] == plans["cpu",]["nodes"]
    assert plans["qnn",]["counts"]["static-int8"] > plans["cpu",]["counts"]["static-int8"]


def test_statistics_are_those_that_the_target_needs(cli, folder: Path) -> None:
    assert cli("calibrate", "digits_cnn.onnx", *DATA, "-o", "s.npz", "--target", "qnn").code == 0
    again = cli("quantize", "digits_cnn.onnx", "--stats", "s.npz", "-o", "q.onnx", "--target", "qnn", "--fast")
    assert again.code == 0


@pytest.mark.parametrize("command", ["quantize", "plan"])
def test_an_unknown_target_is_refused(cli, folder: Path, command: str) -> None:
    code, _, err = cli(command, "digits_cnn.onnx", "--target", "tensor-rt")
    assert code == 2
    assert "there is no target named 'tensor-rt'" in err
    assert "Did you mean 'tensorrt'?" in err


def test_help_names_every_target() -> None:
    assert all(name in declarations()["target"].help for name in target_names())
