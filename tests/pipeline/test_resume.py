"""A run that is interrupted at any moment and resumed writes the bytes of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import genai_decoder, genai_samples
from helpers import floats, node
from onnx import TensorProto, helper

from onnxq.errors import OutputError, RecipeError
from onnxq.ir.storage import residency
from onnxq.ops.forms.block_codes import BlockCodes
from onnxq.pipeline.quantize import quantize
from onnxq.planning.recipe import in_blocks
from onnxq.rounding import checkpoint, layer_by_layer
from onnxq.rounding.block_solver import BlockSolution

MOMENTS = 10


@pytest.fixture
def source(tmp_path):
    onnx.save(genai_decoder(1), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def made(source, name, *, samples=6, bits=4, resume=True):
    given = genai_samples(onnx.load(source, load_external_data=False), samples)
    output = source.with_name(name)
    quantize(source, in_blocks(bits), samples=given, output=output, resume=resume, force=True)
    return output.read_bytes()


def interrupt(monkeypatch, moment):
    """Interrupt a run when the samples have gone on so many times; return what counts that."""
    counted, advance = [], layer_by_layer.advance_runs

    def counting(*given):
        counted.append(None)
        if len(counted) == moment:
            raise KeyboardInterrupt
        advance(*given)

    monkeypatch.setattr(layer_by_layer, "advance_runs", counting)
    return counted


@pytest.mark.parametrize("large", [False, True])
def test_interrupted_at_ten_moments(source, monkeypatch, large):
    if large:
        monkeypatch.setattr(residency, "LARGE", 0)
    with monkeypatch.context() as patch:
        steps = interrupt(patch, 0)
        expected = made(source, "whole.onnx", resume=False)
    folder, kept = source.with_name("q.onnx.resume"), []
    for moment in np.linspace(2, len(steps), MOMENTS).astype(int):
        with monkeypatch.context() as patch:
            interrupt(patch, moment)
            with pytest.raises(KeyboardInterrupt):
                made(source, "q.onnx")
        kept.append(len(list(folder.glob("*.npz"))))
    assert not source.with_name("q.onnx").exists()
    assert kept == sorted(kept)
    assert kept[-1] >= 7
    solved, solve = [], layer_by_layer.solve_blocks
    monkeypatch.setattr(layer_by_layer, "solve_blocks", lambda *a, **k: solved.append(a) or solve(*a, **k))
    assert made(source, "q.onnx") == expected
    assert len(solved) == 8 - kept[-1]
    assert not folder.exists()


def test_a_torn_file_and_codes_of_other_runs_are_not_taken(source, monkeypatch):
    monkeypatch.setattr(residency, "LARGE", 0)
    expected = made(source, "whole.onnx", resume=False)
    with monkeypatch.context() as patch:
        patch.setattr("onnxq.pipeline.quantize.remove_checkpoint", lambda folder: None)
        made(source, "q.onnx", samples=5)
        made(source, "q.onnx", bits=2)
        made(source, "q.onnx")
    folder = source.with_name("q.onnx.resume")
    files = sorted(folder.iterdir())
    assert len(files) == 3 * 8
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert made(source, "q.onnx") == expected
    assert not folder.exists()


def test_what_is_not_ours_stays_in_the_folder(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for name in (f"{32 * 'a'}.npz", f".{32 * 'a'}.npz.123.tmp"):
        (tmp_path / name).write_text("")
    checkpoint.remove_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_takes_no_codes_is_named(tmp_path):
    kept = checkpoint.Checkpoint(tmp_path / "q.onnx.resume", ["run"], [])
    assert kept.find(np.zeros((4, 32), np.float32), "coding") is None
    kept._folder.rmdir()
    codes = BlockCodes(np.zeros((4, 32), np.uint8), np.ones((4, 1), np.float32), np.zeros((4, 1), np.uint8))
    with pytest.raises(OutputError, match="cannot be written") as caught:
        kept.keep(BlockSolution(codes, "nearest"))
    assert "--resume" in str(caught.value.hint)


def test_a_transposed_weight_is_read_where_it_lies(tmp_path, monkeypatch):
    """A tied head is half a gigabyte, and a copy of it would be the most that a run takes."""
    monkeypatch.setattr(checkpoint, "PIECE", 64)
    parts, release = [], checkpoint.release_array
    monkeypatch.setattr(checkpoint, "release_array", lambda part: parts.append(part) or release(part))
    table, found = floats(48, 32), []
    for weight in (table.T, np.ascontiguousarray(table.T), table):
        kept = checkpoint.Checkpoint(tmp_path / "q.onnx.resume", ["run"], [])
        parts.clear()
        kept.find(weight, "coding")
        found.append(kept._path())
        assert len(parts) >= 24
        assert all(np.may_share_memory(part, weight) for part in parts)
    assert len(set(found)) == 3


def test_a_fast_run_has_nothing_to_resume(source):
    with pytest.raises(RecipeError, match="keeps codes that a search has chosen, and --fast has none"):
        quantize(source, in_blocks(4), output=source.with_name("q.onnx"), resume=True, fast=True)


def test_a_recipe_without_blocks_has_nothing_to_resume(source):
    with pytest.raises(RecipeError, match="keeps codes of weights in blocks"):
        quantize(source, "weight-int8", output=source.with_name("q.onnx"), resume=True)
    assert not source.with_name("q.onnx").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")
@pytest.mark.parametrize("repeated", [0, 60])
def test_killed_at_ten_moments(source, repeated):
    """Kill a small decoder that takes the way of large models, and blocks of 520 MB, at moments spread over a run."""
    if repeated:
        source = blocks_of_megabytes(source.with_name("blocks.onnx"), repeated)
        weights, call = 2 * repeated, "t.quantized_blocks(Path(sys.argv[2]), 'q.onnx')"
    else:
        weights, call = 8, "setattr(t.residency, 'LARGE', 0); t.made(Path(sys.argv[2]), 'q.onnx', samples=40)"
    script = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_resume as t; " + call
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(source)]
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    folder = source.with_name("q.onnx.resume")
    for moment in range(MOMENTS):
        run = subprocess.Popen(command, env=environment)
        end = time.time() + 600
        most = weights * moment // MOMENTS
        while run.poll() is None and time.time() < end and len(list(folder.glob("*.npz"))) <= most:
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert not source.with_name("q.onnx").exists()
    subprocess.run(command, env=environment, check=True)
    subprocess.run([*command[:2], script.replace("'q.onnx'", "'r.onnx'"), *command[3:]], env=environment, check=True)
    assert source.with_name("r.onnx").read_bytes() == source.with_name("q.onnx").read_bytes()
    assert not folder.exists()


def blocks_of_megabytes(path, count):
    """Write so many residual blocks of 8.7 MB, the same two matrices again and again, in external data."""
    wide, inner = 1024, 1056
    raw = (np.random.default_rng(0).standard_normal(wide * inner + 2 * count, dtype=np.float32) * 0.03).tobytes()
    nodes, tensors, x = [], [], "x"
    with path.with_name("blocks.data").open("wb") as file:
        for block in range(count):
            for name, shape in ((f"up{block}", [wide, inner]), (f"down{block}", [inner, wide])):
                part = raw[4 * len(tensors) :][: 4 * wide * inner]  # shifted, so that no two weights are equal
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=1)
                for key, entry in (("location", "blocks.data"), ("offset", file.tell()), ("length", len(part))):
                    tensor.external_data.add(key=key, value=str(entry))
                tensors.append(tensor)
                file.write(part)
            end = f"x{block}" if block < count - 1 else "y"
            nodes += [node("LayerNormalization", f"{x} gain", f"n{block}", axis=-1)]
            nodes += [node("MatMul", f"n{block} up{block}", f"u{block}"), node("Relu", f"u{block}", f"r{block}")]
            nodes += [node("MatMul", f"r{block} down{block}", f"d{block}"), node("Add", f"{x} d{block}", end)]
            x = f"x{block}"
    tensors.append(onnx.numpy_helper.from_array(np.ones(wide, np.float32), "gain"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 24, wide]) for name in "xy"]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def quantized_blocks(source, name):
    """Quantize those blocks with few samples."""
    given = [{"x": floats(1, 24, 1024, seed=seed)} for seed in range(8)]
    quantize(source, in_blocks(4), samples=given, output=source.with_name(name), resume=True, force=True)
