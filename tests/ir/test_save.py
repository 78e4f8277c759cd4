"""Files: external data, atomic writes, and everything that can stand in the way."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import run
from ir_support import ROOT, assert_consistent, text_model

from onnxq.errors import ModelError, OutputError
from onnxq.ir import Patch, check_output, commit, load, parse, save
from onnxq.ir.passes import normalise
from onnxq.ir.storage import atomic_write, files

LARGE = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
FEEDS = {"x": np.ones((2, 64), np.float32)}


def large_model():
    text = "g (float[2,64] x) => (float[2,64] y) { a = MatMul(x, w) b = MatMul(a, v) y = Add(b, c) }"
    return text_model(text, {"w": LARGE, "v": LARGE.T.copy(), "c": np.ones(64, np.float32)})


@pytest.fixture
def embedded(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(large_model().SerializeToString())
    return path


@pytest.fixture
def external(tmp_path):
    """What `onnx.save` writes, its data file unaligned."""
    folder = tmp_path / "source"
    folder.mkdir()
    onnx.save(
        large_model(), folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=1024
    )
    return folder / "model.onnx"


def entries(path):
    proto = onnx.load(path, load_external_data=False)
    return {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer}


def test_embedded_external_embedded(embedded, tmp_path):
    expected = run(embedded, FEEDS)[0].tolist()
    out = tmp_path / "out.onnx"
    assert save(load(embedded), out, external_data=True) == [out, tmp_path / "out.onnx.data"]
    found = entries(out)
    assert found["w"] == {"location": "out.onnx.data", "offset": "0", "length": "16384"}
    assert found["v"] == {"location": "out.onnx.data", "offset": "16384", "length": "16384"}
    assert found["c"] == {}  # small constants stay where inference sees them
    assert (tmp_path / "out.onnx.data").stat().st_size == 32768
    assert (tmp_path / "out.onnx.data").read_bytes() == LARGE.tobytes() + LARGE.T.tobytes()
    assert run(out, FEEDS)[0].tolist() == expected
    back = tmp_path / "back.onnx"
    assert save(load(out), back) == [back]
    assert run(back, FEEDS)[0].tolist() == expected
    assert not any(entries(back).values())
    onnx.checker.check_model(str(out), full_check=True)


def test_weights_of_a_replaced_model_go_with_it_and_other_files_stay(embedded, tmp_path):
    out = tmp_path / "out.onnx"
    save(load(embedded), out, external_data=True)
    save(load(embedded), out, force=True)
    assert not (tmp_path / "out.onnx.data").exists()
    (tmp_path / "out.onnx.data").write_bytes(b"of nobody")
    save(load(embedded), out, force=True)
    assert (tmp_path / "out.onnx.data").read_bytes() == b"of nobody"


def test_offsets_are_aligned_to_pages(tmp_path):
    odd = np.arange(1001, dtype=np.float32)
    proto = text_model("g (float[1001] x) => (float[1001] y) { a = Add(x, w) y = Add(a, v) }", {"w": odd, "v": odd + 1})
    out = tmp_path / "out.onnx"
    save(parse(proto.SerializeToString()), out, external_data=True)
    assert [entries(out)[name]["offset"] for name in "wv"] == ["0", "4096"]
    assert (tmp_path / "out.onnx.data").stat().st_size == 4096 + 4004
    assert run(out, {"x": odd})[0].tolist() == (odd + odd + odd + 1).tolist()


def test_external_source_is_mapped_and_its_file_copied_byte_for_byte(external, tmp_path):
    model = load(external)
    assert model.has_external_data
    assert model.graph.initializers["v"].tensor.numpy().tolist() == LARGE.T.tolist()
    save(model, tmp_path / "copy.onnx", external_data=True)
    assert run(tmp_path / "copy.onnx", FEEDS)[0].tolist() == run(external, FEEDS)[0].tolist()
    assert_consistent(model.copy())
    assert model.copy().serialize() == model.serialize()


@pytest.mark.parametrize("name", ["embedded", "external"])
def test_sizes_are_known_before_anything_is_written(request, tmp_path, name):
    model = load(request.getfixturevalue(name))
    inside = save(model, tmp_path / "inside.onnx", external_data=False)
    assert files.written_bytes(model) == inside[0].stat().st_size
    outside = save(model, tmp_path / "outside.onnx", external_data=True)
    assert files.written_bytes(model, "outside.onnx.data") == sum(file.stat().st_size for file in outside)


@pytest.mark.parametrize("to_external", [True, False])
def test_saving_onto_the_mapped_source(external, to_external):
    expected = run(external, FEEDS)[0].tolist()
    for _ in range(3):
        model = load(external)
        save(model, external, force=True, external_data=to_external)
        assert run(external, FEEDS)[0].tolist() == expected
        assert model.serialize() == load(external).serialize()
    files = {"model.onnx", "weights.bin"} | ({"model.onnx.data"} if to_external else set())
    assert {p.name for p in external.parent.iterdir()} == files
    if to_external:
        assert (external.parent / "model.onnx.data").stat().st_size == 32768  # nothing is appended


def test_saving_onto_the_mapped_data_file(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(large_model(), path, save_as_external_data=True, location="m.onnx.data", size_threshold=1024)
    expected = run(path, FEEDS)[0].tolist()
    model = load(path)
    patch = Patch(model.graph)
    patch.rewire(model.graph.nodes[2], 1, patch.constant(np.zeros(64, np.float32), "zero"))
    commit([patch])
    save(model, path, force=True, external_data=True)
    assert model.serialize() == load(path).serialize()
    assert np.add(run(path, FEEDS)[0], 1).tolist() == expected
    assert sorted(p.name for p in folder.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_same_model_gives_the_same_bytes(external, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save(load(external), tmp_path / name / "m.onnx", external_data=True)
    for file in ("m.onnx", "m.onnx.data"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def with_location(path, location, **more):
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.external_data:
            del tensor.external_data[:]
            for key, value in {"location": location, **more}.items():
                tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())
    return load(path)


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("../secret", "points outside the model's folder"),
        ("sub/../../secret", "points outside the model's folder"),
        ("{absolute}", "points outside the model's folder"),
        ("link", "points outside the model's folder"),
        ("", "external data without a location"),
        ("missing.bin", "which cannot be read"),
        ("https://a.b/w.bin", "has its data at https://a.b/w.bin, and weights are read from files alone"),
        (".", "cannot be read|points outside|is no regular file|needs bytes"),
        ("a\x00b", "cannot be read|location"),
    ],
)
def test_data_outside_the_folder_is_refused(external, tmp_path, location, sentence):
    (tmp_path / "secret").write_bytes(bytes(16384))
    (external.parent / "link").symlink_to(tmp_path / "secret")
    model = with_location(external, location.format(absolute=tmp_path / "secret"))
    for use in (
        lambda: model.graph.initializers["w"].tensor.numpy(),
        model.serialize,
        lambda: save(model, tmp_path / "o"),
    ):
        with pytest.raises(ModelError, match=sentence):
            use()
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "more",
    [{"offset": 1 << 40}, {"offset": -8}, {"length": 12}, {"offset": 20000}, {"offset": "x"}, {"length": -16384}],
    ids=str,
)
def test_data_out_of_bounds_is_refused(external, more):
    model = with_location(external, "weights.bin", **more)
    with pytest.raises(ModelError, match=r"needs bytes|is no number"):
        model.graph.initializers["w"].tensor.numpy()


def test_a_length_that_is_not_the_tensors_own_is_named(external):
    model = with_location(external, "weights.bin", length=12)
    with pytest.raises(ModelError, match=r"weights.bin, where it is said to have 12$"):
        model.graph.initializers["w"].tensor.numpy()


def test_weights_that_are_missing_do_not_hide_behind_an_output_that_is_there(external, tmp_path):
    model = load(external)
    (external.parent / "weights.bin").unlink()
    (tmp_path / "o.onnx").touch()
    files.check_sources(model, tmp_path / "o.onnx")
    with pytest.raises(ModelError, match=r"'\w+' needs the file"):
        save(model, tmp_path / "o.onnx", force=True)


def test_external_data_under_a_similar_name_are_pointed_at(external, tmp_path):
    (external.parent / "weights.bin").rename(external.parent / "Weights.bin")
    with pytest.raises(ModelError, match=r"needs the file .*weights\.bin") as caught:
        save(load(external), tmp_path / "o.onnx")
    assert caught.value.hint == "If it is 'Weights.bin' there, give it the name back that the model knows it by."


def test_external_data_that_lost_their_folder_are_found_next_to_the_model(external, tmp_path):
    proto = onnx.load(external, load_external_data=False)
    for entry in (entry for tensor in proto.graph.initializer for entry in tensor.external_data):
        entry.value = entry.value.replace("weights.bin", "parts/weights.bin")
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"needs the file .*parts/weights\.bin") as caught:
        save(load(external), tmp_path / "o.onnx")
    moved = external.parent / "weights.bin"
    assert caught.value.hint == f"Move {moved} into {external.parent / 'parts'}: the model looks for it there."


def test_data_in_a_cache_of_links_are_to_be_copied(external, tmp_path):
    blob = tmp_path / "blobs" / "0a1b"
    blob.parent.mkdir()
    (external.parent / "weights.bin").rename(blob)
    (external.parent / "weights.bin").symlink_to(blob)
    with pytest.raises(ModelError, match=r"folder: weights\.bin is a link to .*/blobs/0a1b$") as caught:
        save(load(external), tmp_path / "o.onnx")
    assert f"cp -RL {external.parent} copy." in caught.value.hint


def test_hard_link_to_elsewhere_is_refused(external, tmp_path):
    os.link(external.parent / "weights.bin", tmp_path / "elsewhere.bin")
    with pytest.raises(ModelError, match="hard link"):
        load(external).graph.initializers["w"].tensor.numpy()


def test_constant_attribute_with_external_data(tmp_path):
    """It moves once it is lifted; before, saving refuses to leave it dangling."""
    proto = text_model(
        "g (float[2,64] x) => (float[2,64] y) { w = Constant <value = float[1] {0}> () y = MatMul(x, w) }"
    )
    proto.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(LARGE))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="d", size_threshold=0, convert_attribute=True)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="keeps its attribute 'value' in an external data file"):
        save(load(path), tmp_path / "out" / "m.onnx")
    model = load(path)
    assert normalise(model, ["lift_constants"]) == ["lifted 1 Constant node to initializers"]
    save(model, tmp_path / "out" / "m.onnx")
    assert run(tmp_path / "out" / "m.onnx", FEEDS)[0].tolist() == run(path, FEEDS)[0].tolist()


def test_beyond_two_gigabytes_goes_external_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", 30000)
    written = save(parse(large_model().SerializeToString()), tmp_path / "m.onnx")
    assert [p.name for p in written] == ["m.onnx", "m.onnx.data"]
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", 300)
    with pytest.raises(ModelError, match="too large: even without weights"):
        save(parse(large_model().SerializeToString()), tmp_path / "n.onnx")
    assert not (tmp_path / "n.onnx.data").exists()


@pytest.mark.parametrize("external_data", [True, False])
@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_failing_write_keeps_the_old_file_and_leaves_nothing(embedded, monkeypatch, external_data, fails):
    old = embedded.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    where = {
        "write": (atomic_write, "_write_chunk"),
        "fsync": (os, "fsync"),
        "replace": (type(embedded), "replace"),
    }[fails]
    model = load(embedded)
    monkeypatch.setattr(*where, full)
    with pytest.raises(OutputError, match="cannot be written \\(No space left on device\\)"):
        save(model, embedded, force=True, external_data=external_data)
    monkeypatch.undo()
    if fails != "replace" or not external_data:
        assert embedded.read_bytes() == old
    assert {p.name for p in embedded.parent.iterdir()} <= {"model.onnx"}


def test_interrupt_leaves_nothing(embedded, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    model = load(embedded)
    monkeypatch.setattr(atomic_write, "_write_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(model, embedded.with_name("new.onnx"))
    assert [p.name for p in embedded.parent.iterdir()] == ["model.onnx"]


def test_outputs_in_the_way(embedded, tmp_path):
    model = load(embedded)
    with pytest.raises(OutputError, match="exists already") as error:
        save(model, embedded)
    assert "--force" in error.value.hint
    with pytest.raises(OutputError, match="is a folder"):
        save(model, tmp_path)
    with pytest.raises(OutputError, match=r"the folder .* does not exist"):
        save(model, tmp_path / "no" / "m.onnx")
    with pytest.raises(OutputError, match="cannot be written"):
        save(model, tmp_path / ("n" * 300))


def test_hints_name_the_option_that_says_where_to_write(tmp_path):
    taken = tmp_path / "r.md"
    taken.touch()
    for path, reads in ((taken, ()), (tmp_path / "no" / "r.md", ()), (taken, (taken,)), (tmp_path / ("n" * 300), ())):
        with pytest.raises(OutputError) as error:
            check_output(path, force=False, reads=reads, option="--report")
        assert error.value.hint.endswith("hoose another place with --report.")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_is_read_is_not_written_to_by_another_name(tmp_path, link):
    source, other = tmp_path / "data.npz", tmp_path / "other.npz"
    source.touch()
    link(other, source)
    for one, two in ((source, other), (other, source)):
        with pytest.raises(OutputError, match="is a file that is to be read"):
            check_output(one, force=True, reads=("package.module:function", None, str(two)))
    check_output(tmp_path / "new.npz", force=False, reads=(source,))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(embedded, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="cannot be written to"):
        save(load(embedded), folder / "m.onnx")
    embedded.chmod(0)
    with pytest.raises(ModelError, match=r"cannot be read \(Permission denied\)"):
        load(embedded)


@pytest.mark.parametrize("user", [1, 2, 3])
def test_a_file_that_only_another_user_may_replace_is_refused_before_any_work(tmp_path, monkeypatch, user):
    """User 1 has the file, user 2 the folder."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    file = folder / "m.onnx"
    file.touch()
    stated = {path: path.stat() for path in (folder, file)}

    def owned(path, owner):
        return os.stat_result((*stated[path][:4], owner, *stated[path][5:]))

    monkeypatch.setattr(files, "_stat", lambda path: owned(path, 1 if path == file else 2))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if user < 3:
        check_output(file, force=True)
        return
    with pytest.raises(OutputError, match="belongs to another user, and its folder lets only that one replace it"):
        check_output(file, force=True)


def test_read_only_source_and_odd_names(tmp_path):
    folder = tmp_path / "mit Leerzeichen ÄÖ 模型"
    folder.mkdir()
    shutil.copy(ROOT / "sample_models" / "digits_if.onnx", folder / "m.onnx")
    (folder / "m.onnx").chmod(0o444)
    (out,) = save(load(folder / "m.onnx"), folder / "größer.onnx")
    assert out.read_bytes() == (folder / "m.onnx").read_bytes()


@pytest.mark.parametrize("length", [260, 250], ids=["too long", "too long until it is whole"])
def test_a_name_that_is_too_long_is_refused_before_any_work(tmp_path: Path, length: int) -> None:
    with pytest.raises(OutputError, match="its name is too long") as error:
        check_output(tmp_path / f"{'x' * (length - 5)}.onnx", force=False)
    assert error.value.hint == "Choose a shorter name, or choose another place with --output."


def test_external_data_that_are_not_fetched_are_named(tmp_path: Path) -> None:
    save(load(ROOT / "sample_models" / "digits_cnn.onnx"), tmp_path / "m.onnx", external_data=True)
    (tmp_path / "m.onnx.data").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match="is a Git LFS pointer, not the external data itself") as error:
        [value.tensor.numpy() for value in load(tmp_path / "m.onnx").initializers() if value.tensor is not None]
    assert error.value.hint == "Run `git lfs pull`."
