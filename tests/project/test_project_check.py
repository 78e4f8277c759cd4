"""Every finding has a spoiled repository that trips it."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import build as build_graph
from helpers import floats, node
from onnx import numpy_helper
from text_support import encoder, save_tokenizer, sentences

from onnxq.errors import CheckFailed, ProjectError
from onnxq.hazards import FoundHazard, load_hazards
from onnxq.ir import load, parse, save
from onnxq.pipeline.options import QuantizeOptions
from onnxq.project import provenance
from onnxq.project.build import build
from onnxq.project.check import Checked, Finding, check, check_structure
from onnxq.project.file import load_project
from onnxq.project.one_model import override
from onnxq.project.provenance import INPUTS, MEASURED, gather

FLOAT, QUANTIZED, DATA = Path("models/cnn.onnx"), Path("models/cnn.int8.onnx"), Path("data/calibration.npz")


def found() -> list[tuple[str, str, str]]:
    return [(str(f.path), f.rule, f.message) for f in check(load_project()).findings]


def edit(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())


def add_metadata(key: str, value: str) -> None:
    """Set an entry; all other bytes stay."""
    model = parse(QUANTIZED.read_bytes())
    model.metadata[key] = value
    QUANTIZED.write_bytes(model.serialize())


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def replace_in_project(old: str, new: str) -> None:
    path = Path("onnxq.toml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_nothing_is_wrong_with_what_was_just_built(repo: Path) -> None:
    result = check(load_project())
    assert (result.models, result.findings) == (1, ())


def test_reading_changes_nothing(repo: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in repo.rglob("*.*")}
    check(load_project())
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in repo.rglob("*.*")} == before


def test_touching_a_file_makes_nothing_stale(repo: Path) -> None:
    for path in (FLOAT, QUANTIZED, DATA):
        path.touch()
    Path("onnxq.toml").write_text("# a comment\n" + Path("onnxq.toml").read_text())
    assert found() == []


def test_a_missing_quantized_model(repo: Path) -> None:
    QUANTIZED.unlink()
    assert found() == [(str(QUANTIZED), "missing", "does not exist; build it with `onnxq quantize`")]


def test_a_path_of_windows_is_told_what_goes_between_folders(repo: Path) -> None:
    text = Path("onnxq.toml").read_text()
    Path("onnxq.toml").write_text(text.replace(str(FLOAT), str(FLOAT).replace("/", "\\\\")))
    message = next(message for _, code, message in found() if code == "missing")
    assert message == "does not exist; the project file lists it: / goes between folders, not \\"


def test_a_missing_float_model(repo: Path) -> None:
    FLOAT.unlink()
    assert found() == [(str(FLOAT), "missing", "does not exist; the project file lists it")]
    FLOAT.with_name("CNN.onnx").touch()
    assert found()[0][2] == "does not exist; the project file lists it; did you mean 'CNN.onnx'?"


def test_another_float_model(repo: Path) -> None:
    edit(FLOAT, lambda model: setattr(model, "doc_string", "exported again"))
    assert found() == [
        (str(QUANTIZED), "stale-float", "is out of date: models/cnn.onnx has changed since it was built"),
    ]


def test_a_float_model_whose_external_data_changed(repo: Path) -> None:
    model = onnx.load(FLOAT)
    onnx.save(model, FLOAT, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (done,) = build(load_project().entries)
    assert done.state == "built", done.error
    assert found() == []
    outside = Path("models/weights.bin")
    content = bytearray(outside.read_bytes())
    content[1000] ^= 1
    outside.write_bytes(content)
    message = "is out of date: models/cnn.onnx has changed since it was built"
    assert [(f.rule, f.message) for f in check(load_project(), [outside]).findings] == [("stale-float", message)]
    outside.unlink()
    ((path, rule, message),) = found()
    assert (path, rule) == (str(FLOAT), "unreadable")
    assert "weights.bin" in message


def test_other_data(repo: Path) -> None:
    np.savez(DATA, image=np.load(DATA)["image"][::-1])
    assert found() == [
        (str(QUANTIZED), "stale-data", "is out of date: its data data/calibration.npz have changed since it was built")
    ]


def test_missing_data(repo: Path) -> None:
    DATA.unlink()
    message = "may be out of date: data/calibration.npz does not exist"
    assert found() == [(str(QUANTIZED), "stale-unknown", message)]


CHANGES = {
    "recipe": ("samples = 8", 'samples = 8\nrecipe = "static-int8"', "its recipe static-int8 is another one than"),
    "no samples": ("samples = 8\n", "", "'samples' was 8 when it was built, and is not set"),
    "samples": ("samples = 8", "samples = 9", "'samples' was 8 when it was built, and is 9"),
    "exclude": ("samples = 8", 'samples = 8\nexclude = ["Gemm"]', 'is ["Gemm"]'),
    "only": ("samples = 8", 'samples = 8\nonly = ["Gemm"]', "'only' was [] when it was built"),
    "external data": ("samples = 8", "samples = 8\nexternal-data = true", "'external-data' was false"),
    "no data": ('data = ["data/calibration.npz"]\nsamples = 8', "", "its data were data/calibration.npz when"),
    "min-sqnr": ("min-sqnr = 20.0", "min-sqnr = 90.0", "'min-sqnr' was 20.0 when it was built, and is 90.0"),
    "target": ("samples = 8", 'samples = 8\ntarget = "generic"', "its recipe auto is another one than"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_another_way_of_building(repo: Path, name: str) -> None:
    old, new, expected = CHANGES[name]
    replace_in_project(old, new)
    (path, rule, message), *_ = found()
    what = {"recipe": "recipe", "target": "recipe", "no data": "data"}.get(name, "options")
    assert (path, rule) == (str(QUANTIZED), f"stale-{what}")
    assert expected in message


def test_an_edited_recipe(repo: Path) -> None:
    recipe = Path("mine.toml")
    recipe.write_text('scheme = "static-int8"\n')
    replace_in_project("samples = 8", 'samples = 8\nrecipe = "mine.toml"')
    (done,) = build(load_project().entries)
    assert done.state == "built"
    recipe.write_text('# a comment, and other blanks\nscheme =   "static-int8"\r\n')
    assert found() == []
    recipe.write_text('scheme = "static-int8"\nranges = "mse"\n')
    assert [rule for _, rule, _ in found()] == ["stale-recipe"]
    recipe.write_text("scheme = 3\n")
    assert "may be out of date: recipe mine.toml: 'scheme' cannot be 3" in found()[0][2]


def test_a_function_that_gives_data(repo: Path) -> None:
    source = "import numpy as np\ndef give():\n    return [{'image': np.zeros((1, 1, 8, 8), np.float32)}] * 4\n"
    Path("project_samples.py").write_text(source)
    replace_in_project('"data/calibration.npz"', '"project_samples:give"')
    replace_in_project("thresholds = { min-sqnr = 20.0, min-agreement = 90 }", "")
    (done,) = build(load_project().entries)
    assert done.state == "built", done.error
    assert found() == []
    Path("project_samples.py").write_bytes(source.replace("\n", "\r\n").encode())
    assert found() == []
    Path("project_samples.py").write_text(source.replace("zeros", "ones"))
    assert "its data project_samples:give have changed" in found()[0][2]


def test_a_folder_of_data(repo: Path) -> None:
    Path("data/.DS_Store").write_text("x")
    replace_in_project('"data/calibration.npz"', '"data"')
    (done,) = build(load_project().entries)
    assert done.state == "built", done.error
    Path("data/.DS_Store").write_text("y")
    assert found() == []
    np.savez("data/more.npz", image=np.load(DATA)["image"][:2])
    assert "its data data have changed" in found()[0][2]


def test_linked_folders_of_data_count_once(tmp_path: Path) -> None:
    """Folders of classes may be links, and pictures in them are read."""
    data, linked = tmp_path / "data", tmp_path / "elsewhere"
    (data / "b").mkdir(parents=True)
    linked.mkdir()
    (data / "a").symlink_to(linked)
    (data / "b" / "back").symlink_to(data)
    for path in (data / "x.png", data / "b" / "y.JPG", data / "b" / "z.txt", linked / "v.png"):
        path.write_text(path.name)
    assert [name for name, _ in provenance._folder_files(data)] == ["a/v.png", "b/y.JPG", "x.png"]


def test_another_version_of_onnxq(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.project.provenance.__version__", "9.9")
    assert found()[0][1:] == ("stale-version", "is out of date: it was built by onnxq 0.1.0, this is 9.9")
    monkeypatch.setattr("onnxq.project.provenance.__version__", "0.1.99")
    assert found() == []  # a patch version chooses the same codes


LOOSER = (("min-sqnr = 20.0", "min-sqnr = 10.0"), ("min-sqnr = 20.0, ", ""), ("min-sqnr = 20.0", "min-sqnr = 21.0"))


@pytest.mark.parametrize(("old", "new"), [*LOOSER, ('"100 kB"', '"90 kB"'), ('max-size = "100 kB"', "")])
def test_limits_that_a_model_keeps_to_do_not_make_it_stale(repo: Path, old: str, new: str) -> None:
    replace_in_project(old, new)
    assert found() == []


def test_weights_in_a_file_of_their_own_are_those_that_were_written(repo: Path) -> None:
    replace_in_project("samples = 8", "samples = 8\nexternal-data = true")
    (done,) = build(load_project().entries)
    assert done.state == "built"
    assert found() == []
    data = QUANTIZED.with_name("cnn.int8.onnx.data")
    spoilt = bytearray(data.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    data.write_bytes(spoilt)
    assert [rule for _, rule, _ in found()] == ["altered"]
    assert [each.state for each in build(load_project().entries)] == ["built"]
    assert found() == []
    content = QUANTIZED.read_bytes()
    QUANTIZED.write_bytes(content.replace(b"Relu", b"Tanh"))
    assert content != QUANTIZED.read_bytes()
    assert [rule for _, rule, _ in found()] == ["altered"]


@pytest.mark.parametrize("external", [False, True])
def test_what_is_written_of_a_model_is_known_before(tmp_path: Path, external: bool) -> None:
    proto = build_graph([node("MatMul", "x w", "y")], {"x": [2, 32]}, ["y"], {"w": floats(32, 32)})
    proto.opset_import[0].ClearField("domain")  # onnxq writes it where it changes anything
    model = parse(proto.SerializeToString())
    model.metadata["licence"] = "CC0"
    known = provenance.written_hash(model, "q.onnx.data" if external else None)
    assert model.metadata == {"licence": "CC0"}
    model.metadata[INPUTS] = json.dumps(known)
    save(model, tmp_path / "q.onnx", external_data=external)
    assert not provenance.was_altered(load(tmp_path / "q.onnx"))


def test_figures_count_where_an_option_switches_off_that_they_are_old(repo: Path) -> None:
    replace_in_project("min-agreement = 90 }", "max-abs = 0.0001 }")
    replace_in_project("samples = 8", "samples = 7")
    assert [f.rule for f in check(load_project()).findings] == ["stale-options"]
    assert [f.rule for f in check(load_project(), ignore=("stale",)).findings] == ["below-threshold"]


def test_findings_are_switched_off(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.project.provenance.__version__", "9.9")
    edit(FLOAT, lambda model: setattr(model, "doc_string", "exported again"))
    assert [rule for _, rule, _ in found()] == ["stale-version", "stale-float"]
    by_option = check(load_project(), (), ["stale-version"])
    assert ([f.rule for f in by_option.findings], by_option.ignored) == (["stale-float"], 1)
    assert check(load_project(), (), ["stale"]) == Checked(1, (), 2)
    replace_in_project("samples = 8", 'samples = 8\nignore = ["stale-float"]')
    assert [rule for _, rule, _ in found()] == ["stale-version"]
    assert check(load_project(), (), ["stale-version"]) == Checked(1, (), 2)
    with pytest.raises(ProjectError, match="--ignore names an unknown finding 'stale-vesion'") as error:
        check(load_project(), (), ["stale-vesion"])
    assert error.value.hint == "Did you mean 'stale-version'?"


def test_what_is_switched_off_is_not_built_again_unless_it_is_damaged(repo: Path) -> None:
    edit(FLOAT, lambda model: setattr(model, "doc_string", "exported again"))
    replace_in_project("samples = 8", 'samples = 8\nignore = ["stale", "missing"]')
    assert [done.state for done in build(load_project().entries)] == ["up to date"]
    QUANTIZED.unlink()
    assert found() == []
    assert [done.state for done in build(load_project().entries)] == ["built"]


@pytest.mark.parametrize("record", [None, "", "{", "[]", '{"onnxq": 3, "data": 3, "options": 3}'])
def test_a_model_from_elsewhere(repo: Path, record: str | None) -> None:
    def change(model: onnx.ModelProto) -> None:
        kept = {key: value for key, value in metadata(QUANTIZED).items() if key != INPUTS}
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, kept | ({} if record is None else {INPUTS: record}))

    edit(QUANTIZED, change)
    (_, rule, message), *_ = found()
    assert rule == ("stale-origin" if record is None or len(record) < 3 else "stale-version")
    assert ("was not built from models/cnn.onnx" in message) == (record is None or len(record) < 3)


def zero_scale(model: onnx.ModelProto) -> None:
    names = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    scale = next(tensor for tensor in model.graph.initializer if tensor.name in names)
    scale.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(scale)), scale.name))


def test_a_scale_of_zero(repo: Path) -> None:
    edit(QUANTIZED, zero_scale)
    results = found()
    assert {(path, rule) for path, rule, _ in results} == {(str(QUANTIZED), "malformed")}
    assert all("scale" in message and "0" in message for _, _, message in results)


def test_a_truncated_model(repo: Path) -> None:
    QUANTIZED.write_bytes(QUANTIZED.read_bytes()[:-20_000])  # inside the graph, not between two entries of metadata
    ((path, rule, message),) = found()
    assert (path, rule) == (str(QUANTIZED), "unreadable")
    assert message.startswith("is not a readable ONNX model: ")


def test_a_git_lfs_pointer(repo: Path) -> None:
    FLOAT.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    ((path, rule, message),) = found()
    assert (path, rule) == (str(FLOAT), "unreadable")
    assert "is a Git LFS pointer, not the model itself" in message
    assert "git lfs pull" in message


def test_a_git_lfs_pointer_in_place_of_data(repo: Path) -> None:
    DATA.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    ((path, rule, message),) = found()
    assert (path, rule) == (str(QUANTIZED), "stale-unknown")
    assert f"{DATA} is a Git LFS pointer, not the data itself" in message


def test_a_flipped_bit_in_a_weight(repo: Path) -> None:
    content = bytearray(QUANTIZED.read_bytes())
    model = onnx.load(QUANTIZED)
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data)).raw_data
    content[content.index(weight) + 100] ^= 4
    QUANTIZED.write_bytes(content)
    assert found() == [(str(QUANTIZED), "altered", "is not what onnxq wrote; build it with `onnxq quantize` again")]


def test_entries_that_others_add_to_the_metadata_are_no_change(repo: Path) -> None:
    add_metadata("licence", "CC0")
    assert metadata(QUANTIZED)["licence"] == "CC0"
    assert found() == []


def test_an_operator_that_does_not_exist(repo: Path) -> None:
    edit(FLOAT, lambda model: setattr(model.graph.node[0], "op_type", "Convolve"))
    (path, rule, message), stale = found()
    assert (path, rule) == (str(FLOAT), "malformed")
    assert "Convolve" in message
    assert stale[1] == "stale-float"


def test_a_model_that_is_too_large(repo: Path) -> None:
    replace_in_project('"100 kB"', '"50 kB"')
    size = QUANTIZED.stat().st_size
    message = f"has {size:,} bytes, {size - 50_000:,} more than the 50,000 allowed"
    stale = "is out of date: 'max-size' was 100000 when it was built, and is 50000"
    assert found() == [(str(QUANTIZED), "stale-options", stale), (str(QUANTIZED), "too-large", message)]


def test_external_data_counts_and_has_to_be_there(repo: Path) -> None:
    replace_in_project("samples = 8", "samples = 8\nexternal-data = true")
    replace_in_project('"100 kB"', '"250 kB"')  # with all the space that may lie between weights outside
    (done,) = build(load_project().entries)
    assert done.state == "built", done.error
    assert found() == []
    replace_in_project('"250 kB"', '"50 kB"')
    assert [rule for _, rule, _ in found()] == ["stale-options", "too-large"]
    outside = Path("models/cnn.int8.onnx.data")
    outside.write_bytes(outside.read_bytes()[:100])
    assert {(path, rule) for path, rule, _ in found()} >= {(str(QUANTIZED), "malformed")}
    outside.unlink()
    ((path, rule, message),) = found()
    assert (path, rule) == (str(QUANTIZED), "unreadable")
    assert "cnn.int8.onnx.data" in message


def test_figures_below_a_threshold_of_today(repo: Path) -> None:
    replace_in_project("min-agreement = 90", "min-cosine = 1, max-abs = 1e-9")
    results = found()
    assert [(path, rule) for path, rule, _ in results] == [(str(QUANTIZED), "below-threshold")] * 2
    assert "when it was built, output 'logits' is off by up to " in results[0][2]
    assert "below 1" in results[1][2]


def test_an_onnxruntime_that_computes_a_model_wrongly_is_a_finding(repo: Path, monkeypatch) -> None:
    row = replace(
        next(one for one in load_hazards() if one.effect == "wrong"), until="", since="", processors=(), unless=()
    )
    hazard = FoundHazard(row, ("conv",), here=True)
    asked: list[object] = []
    monkeypatch.setattr("onnxq.project.check.find_hazards", lambda *given: (asked.append(given[1]), (hazard,))[1])
    ((path, rule, message),) = found()
    assert (path, rule) == (str(QUANTIZED), "onnxruntime")
    assert message == f"onnxruntime {onnxruntime.__version__} is installed: {row.sentence}. {row.remedy}"
    assert asked == [onnxruntime.__version__]
    hazard = replace(hazard, here=False)
    assert found() == []


def test_figures_of_equal_and_of_broken_outputs(repo: Path) -> None:
    def record(**figures: object) -> None:
        measured = json.loads(metadata(QUANTIZED)[MEASURED])
        measured["outputs"][0] |= figures
        add_metadata(MEASURED, json.dumps(measured))

    record(equal=True, sqnr=None)
    assert found() == []
    record(equal=False, sqnr=None)
    assert "is zero in the float model, and here it is not" in found()[0][2]
    record(max_abs=None)
    assert "overflows: 20 dB are asked for" in found()[0][2]
    record(agreement=None, sqnr=80.0, max_abs=0.1)
    assert "no output has classes" in found()[0][2]
    record(elements="many")
    assert found() == []


def test_only_what_files_belong_to_is_checked(repo: Path) -> None:
    QUANTIZED.unlink()
    Path("other.onnx").write_text("nothing")
    project = load_project()
    (missing,) = check(project, [DATA]).findings
    assert missing.rule == "missing"
    assert check(project, [Path("README.md"), Path("other.txt")]) == check(None, [])
    both = check(project, [FLOAT, QUANTIZED, Path("other.onnx"), Path("other.onnx")])
    assert [f.rule for f in both.findings] == ["missing", "unreadable"]
    assert both.models == 2


@pytest.mark.parametrize("renamed", [FLOAT, QUANTIZED, DATA])
def test_what_is_renamed_is_missing(repo: Path, renamed: Path) -> None:
    """pre-commit tells the new name only."""
    new = renamed.rename(renamed.with_stem("renamed"))
    result = check(load_project(), [new])
    assert result.models == 1 + (new.suffix == ".onnx")
    assert [f.rule for f in result.findings] == ["stale-unknown" if renamed == DATA else "missing"]
    assert check(load_project(), [Path("code.py")]).findings == ()


def test_models_outside_a_project_have_to_be_well_formed(repo: Path) -> None:
    assert check(None, [FLOAT, QUANTIZED]).findings == ()
    edit(QUANTIZED, zero_scale)
    (first, *_) = check(None, [FLOAT, QUANTIZED]).findings
    assert isinstance(first, Finding)
    assert (first.path, first.rule) == (QUANTIZED, "malformed")


def test_the_structure_is_checked_without_weights(repo: Path) -> None:
    model = load(FLOAT)
    assert check_structure(model) is None
    edit(FLOAT, lambda made: setattr(made.graph.node[-1], "op_type", "Gemma"))
    assert "Gemma" in str(check_structure(load(FLOAT)))


def test_onnxruntime_is_not_imported(repo: Path) -> None:
    code = (
        "import sys; from onnxq.cli import main; code = main(['check']); "
        "late = ('onnxruntime', 'onnxq.pipeline.quantize', 'onnx.reference'); "
        "sys.exit(code or sum(name in sys.modules for name in late))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "1 model checked: all is well\n")


def test_other_files_cost_not_even_an_import(repo: Path) -> None:
    Path("code.py").write_text("")
    code = "import sys; from onnxq.cli import main; sys.exit(main(['check', 'code.py']) or 'onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no model is concerned\n")


def test_a_build_says_no_before_it_writes(repo: Path) -> None:
    QUANTIZED.unlink()
    replace_in_project("min-sqnr = 20.0", "min-sqnr = 90.0")
    (done,) = build(load_project().entries)
    assert isinstance(done.error, CheckFailed)
    assert not QUANTIZED.exists()


def test_data_to_verify_with_that_are_missing_are_a_finding(repo: Path) -> None:
    path = Path("onnxq.toml")
    path.write_text(path.read_text().replace("[[models]]", '[[models]]\nverify-data = ["data/nowhere.npz"]', 1))
    ((name, message),) = [(name, message) for name, rule, message in found() if rule == "missing-data"]
    assert Path(name).name == "nowhere.npz"
    assert "the project file lists it to verify" in message


def test_a_tokenizer_next_to_the_model_that_changes_makes_it_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    encoder(Path("m/encoder.onnx"))
    tokenizer = save_tokenizer(Path("m"))
    Path("s.txt").write_text("\n".join(sentences(16)))
    Path("onnxq.toml").write_text("[[models]]\nfloat = 'm/encoder.onnx'\ndata = ['s.txt']\nfast = true\n")
    entries = load_project().entries
    assert [done.state for done in build(entries)] == ["built"]
    assert set(gather(entries[0], load(entries[0].source))["data"]) == {
        "s.txt",
        "m/tokenizer.json",
        "m/tokenizer_config.json",
    }
    assert not check(load_project()).findings
    assert tokenizer.resolve() in {path.resolve() for path in entries[0].files()}
    tokenizer.write_text(tokenizer.read_text().replace('"green"', '"greenish"'))
    (finding,) = check(load_project()).findings
    assert "its data m/tokenizer.json have changed since it was built" in finding.message


def test_texts_of_bytes_need_no_file_of_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = {"table": floats(256, 16, seed=1), "w": floats(16, 4, scale=0.3)}
    nodes = [node("Gather", "table input_ids", "e"), node("MatMul", "e w", "y")]
    model = build_graph(nodes, {"input_ids": ["n", "length"]}, ["y"], weights)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, "m.onnx")
    Path("s.txt").write_text("\n".join(sentences(16)))
    entry = "[[models]]\nfloat = 'm.onnx'\ndata = ['s.txt']\nfast = true\nrecipe = 'weight-int8'\n"
    Path("onnxq.toml").write_text(f"{entry}tokenizer = 'bytes'\n")
    (done,) = build(load_project().entries)
    assert done.state == "built", done.error
    assert not check(load_project()).findings
    given = override(load_project().entries[0], QuantizeOptions(tokenizer=Path("bytes")), ["tokenizer"])
    assert given.options.tokenizer == Path("bytes")
    Path("onnxq.toml").write_text(entry)
    (finding,) = check(load_project()).findings
    assert finding.message == "is out of date: its data were s.txt, bytes when it was built"
