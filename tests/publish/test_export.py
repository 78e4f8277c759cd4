"""Files for model hubs: names, targets, the card, and nothing half-written."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import build, floats, node

from onnxq.errors import NothingToQuantize, OutputError, RecipeError
from onnxq.ir import load, save
from onnxq.ir.storage import files as storage
from onnxq.publish.conventions import CONVENTIONS
from onnxq.publish.export import CARD, export
from onnxq.publish.model_card import ExportedFile, model_card, table
from onnxq.report import Report
from onnxq.verification.families import FamilyFigures

HUB = ["onnx/model.onnx", *(f"onnx/model_qint8{end}.onnx" for end in ("", "_avx512_vnni", "_avx2", "_arm64"))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two products, `m.onnx`, and their data, `d.npz`."""
    monkeypatch.chdir(tmp_path)
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
    weights = {"w": floats(128, 128) / 11, "v": floats(128, 128, seed=2) / 11}
    onnx.save(build(nodes, {"x": ["n", 128]}, weights=weights), "m.onnx")
    np.savez("d.npz", x=floats(16, 128, seed=1))
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_file_has_the_name_that_is_loaded_and_computes_nearly_the_same(here: Path) -> None:
    done = export("m.onnx", "hub", "out", data="d.npz")
    assert [file.name for file in done.files] == HUB
    assert files(here / "out") == sorted([*HUB, CARD])
    assert files(here) == sorted(["d.npz", "m.onnx", *(f"out/{name}" for name in (*HUB, CARD))])
    assert all(file.sqnr is not None and file.sqnr > 25 for file in done.files[1:])
    assert (here / "out/onnx/model.onnx").read_bytes() == (here / "m.onnx").read_bytes()
    card = (here / "out" / CARD).read_text("utf-8")
    assert all(f"| `{name}` |" in card for name in HUB)
    assert "16 samples from d.npz" in card


@pytest.mark.parametrize("convention", ["transformers.js", "sherpa"])
def test_weights_of_a_large_model_have_the_name_that_is_loaded(
    here: Path, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PROTOBUF_LIMIT", 30_000)  # in place of 2 GB: the weights have 131 kB in float
    done = export("m.onnx", convention, "out", data="d.npz")
    large = [file for file in done.files if file.bytes > 30_000]
    for file in large:
        name = f"{file.name}_data" if convention == "transformers.js" else f"{file.name}.data"
        assert (here / "out" / name).stat().st_size > 10_000
        assert file.data == name
        result = onnxruntime.InferenceSession(here / "out" / file.name, providers=["CPUExecutionProvider"])
        assert np.isfinite(result.run(None, {"x": floats(2, 128)})[0]).all()
    assert len(large) >= 1
    card = (here / "out" / CARD).read_text("utf-8")
    assert ("`use_external_data_format: true`" in card) == (convention == "transformers.js")
    assert f"`{large[0].data}`" in card
    for path in (here / "out").rglob("*"):
        if path.is_file() and not path.name.endswith("data"):
            path.unlink()
    with pytest.raises(OutputError, match=r"data already exists"):  # weights alone are not replaced either
        export("m.onnx", convention, "out", data="d.npz")


def test_weights_that_are_read_are_not_replaced(here: Path) -> None:
    (here / "onnx").mkdir()
    model = onnx.load("m.onnx")
    onnx.save(model, "onnx/large.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    with pytest.raises(OutputError, match=r"model\.onnx_data would be replaced by itself"):
        export("onnx/large.onnx", "transformers.js", ".", data="d.npz", force=True)


def test_each_file_is_for_its_target(here: Path) -> None:
    export("m.onnx", "transformers.js", "out", data="d.npz")
    for file in CONVENTIONS["transformers.js"].files:
        model = onnx.load(here / "out" / file.name)
        recipe = next((p.value for p in model.metadata_props if p.key == "onnxq_recipe"), "")
        assert (f'target = "{file.target}"' in recipe) == (file.target not in (None, "cpu"))
        assert any(n.op_type == "MatMulNBits" for n in model.graph.node) == (file.bits == 4)


def test_settings_for_transformers_js_are_those_of_the_files(here: Path) -> None:
    done = export("m.onnx", "transformers.js", "out", data="d.npz", metric="cosine")
    settings = json.loads((here / "out/quantize_config.json").read_text())
    assert settings["modes"] == ["q8", "int8", "q4"]
    assert settings["recipes"] == {file.name: file.recipe for file in done.files}
    (product, *_) = [n for n in onnx.load(here / "out/onnx/model_q4.onnx").graph.node if n.op_type == "MatMulNBits"]
    values = {one.name: onnx.helper.get_attribute_value(one) for one in product.attribute}
    assert (values["block_size"], values.get("accuracy_level")) == (settings["block_size"], settings["accuracy_level"])
    assert settings["is_symmetric"] == (len(product.input) < 4)
    assert all(file.metric is not None and file.metric > 0.98 for file in done.files[1:])
    with pytest.raises(OutputError, match="already exists"):
        export("m.onnx", "transformers.js", "out", data="d.npz")


def test_names_follow_the_model_where_the_tool_wants_that(here: Path) -> None:
    export("m.onnx", "sherpa", "out")
    assert files(here / "out") == sorted(["m.onnx", "m.int8.onnx", CARD])


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    card = model_card("any", [ExportedFile("a|b.onnx", "any processor", "auto", 1)], [], "")
    assert "| `a\\|b.onnx` | any processor |" in card


def test_a_file_that_cannot_be_made_is_named(here: Path) -> None:
    """A convolution of few channels has no product whose weight goes into blocks of 4 bits."""
    weights = {"w": floats(8, 8, 3, 3)}
    onnx.save(build([node("Conv", "x w", "y")], {"x": [1, 8, 16, 16]}, weights=weights), "c.onnx")
    done = export("c.onnx", "transformers.js", "out")
    names = [file.name for file in done.files]
    assert len(names) + len(done.skipped) == 4
    assert all(f"Not written: `{name}`" in (here / "out" / CARD).read_text("utf-8") for name, _ in done.skipped)


def test_nothing_is_left_behind_where_it_fails(here: Path) -> None:
    onnx.save(build([node("Relu", "x", "y")], {"x": ["n", 4]}), "r.onnx")
    before = files(here)
    with pytest.raises(NothingToQuantize):
        export("r.onnx", "hub", "out")
    assert files(here) == before
    assert not (here / "out").exists()


def test_a_full_disk_is_told_by_the_name_of_the_file_to_come(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(files: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "write_together", full)
    with pytest.raises(OutputError) as caught:
        export("m.onnx", "hub", "out")
    assert caught.value.message == "out/onnx/model.onnx cannot be written (No space left on device)"


def test_files_that_exist_are_not_replaced_unasked(here: Path) -> None:
    export("m.onnx", "sherpa", "out")
    (here / "out/m.int8.onnx").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"m\.onnx already exists"):
        export("m.onnx", "sherpa", "out")
    assert (here / "out/m.int8.onnx").read_bytes() == b"mine"
    save(load("m.onnx"), "out/m.onnx", force=True, external_data=True)
    export("m.onnx", "sherpa", "out", force=True)
    assert not Path("out/m.onnx.data").exists()
    assert (here / "out/m.int8.onnx").read_bytes() != b"mine"
    with pytest.raises(OutputError, match="would be replaced by itself"):
        export("m.onnx", "sherpa", ".", force=True)
    with pytest.raises(OutputError, match="does not exist"):
        export("m.onnx", "sherpa", "no/where")
    with pytest.raises(OutputError, match="is a file"):
        export("m.onnx", "sherpa", "d.npz")
    Path("other/m.int8.onnx").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"m.int8.onnx is a folder"):
        export("m.onnx", "sherpa", "other", force=True)
    assert [path.name for path in Path("other").iterdir()] == ["m.int8.onnx"]  # all files are written, or none
    with pytest.raises(RecipeError, match="no file names for 'hugging'"):
        export("m.onnx", "hugging", "out")


@pytest.mark.parametrize(
    ("families", "sqnr"),
    [(("cpu-avx2",), 21.0), (("cpu-vnni",), 40.0), (("cpu-avx2", "cpu-vnni"), 21.0), (("cpu-vnni", "web"), None)],
)
def test_the_sqnr_is_that_of_the_processors_that_a_file_is_for(families: tuple[str, ...], sqnr: float | None) -> None:
    """Products saturate on AVX2: a file for it is as good as it is there, not as on the processor at hand."""
    known = (("cpu-avx2", 21.0), ("cpu-vnni", 40.0), ("web", None))
    figures = tuple(FamilyFigures(name, value) for name, value in known)
    file = ExportedFile.of_report("m.onnx", "x86", Report(Path("m"), 0, "auto", (), families=figures), families)
    assert file.sqnr == sqnr
    assert table([file])[1][0][3] == ("not known" if sqnr is None else f"{sqnr:.1f} dB")
