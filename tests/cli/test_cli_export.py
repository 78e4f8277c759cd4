"""`onnxq export`: a table, JSON, and names that do not exist."""

from __future__ import annotations

import json
from pathlib import Path

from cli_support import Cli

from onnxq.publish.export import CARD


def test_the_command(here: Path, cli: Cli) -> None:
    result = cli("export", "m.onnx", "--for", "sherpa", "-o", "out", "-d", "d.npz")
    assert result.code == 0
    assert "m.int8.onnx" in result.out
    assert CARD in result.err
    record = json.loads(cli("export", "m.onnx", "--for", "sherpa", "-o", "o2", "--format", "json").out)
    assert [file["name"] for file in record["files"]] == ["m.onnx", "m.int8.onnx"]
    wrong = cli("export", "m.onnx", "--for", "hubb", "-o", "o3")
    assert wrong.code == 2
    assert "Did you mean 'hub'?" in wrong.err
    assert not (here / "o3").exists()
