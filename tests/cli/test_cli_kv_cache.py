"""`quantize --kv-cache`."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import genai_decoder, genai_samples

from onnxq.ir import load
from onnxq.lowering.coded_caches import coded_attentions


def test_the_command_line_takes_it(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(genai_decoder(), "float.onnx")
    many = genai_samples(genai_decoder(), 6, length=20)
    np.savez("data.npz", **{name: np.concatenate([one[name] for one in many]) for name in many[0]})
    given = ("quantize", "float.onnx", "-d", "data.npz", "--bits", 4, "--fast")
    assert cli(*given, "--kv-cache", "int8").code == 0
    assert coded_attentions(load("float.int8.onnx"))
    code, _, err = cli(*given, "--kv-cache", "int4", "--force")
    assert code == 2
    assert "--kv-cache cannot be int4" in err
