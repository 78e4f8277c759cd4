"""Samples from pictures: from the folder to the arrays that a model gets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import peak_memory
from onnx import TensorProto
from picture_support import classifier, photos, picture, save_picture

from onnxq.data.examine import _of_pictures
from onnxq.data.pictures.decode import Decoder
from onnxq.data.reading import ModelFacts, Reading
from onnxq.data.samples import Samples, open_samples
from onnxq.data.validation import InputSpec
from onnxq.errors import DataError

pytest.importorskip("PIL")
X = InputSpec("x", TensorProto.FLOAT, ("n", 3, 24, 32))
UNIT = Reading(("scale=255",))


def opened(source: Path, *inputs: InputSpec, reading: Reading = UNIT, facts: ModelFacts | None = None) -> Samples:
    return open_samples(source, inputs or (X,), reading, facts or ModelFacts())


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    samples = opened(photos(tmp_path / "photos", 5))
    assert samples.count == 5
    assert samples.description == "5 samples from photos"
    for index, sample in enumerate(samples):
        expected = np.moveaxis((picture(seed=index) / 255.0).astype(np.float32), -1, 0)[None]
        np.testing.assert_array_equal(sample["x"], expected, strict=True)
    assert [str(one) for one in samples.preparations] == [
        "x: RGB, shrunk to cover 24×32, centre cut out, x / 255 (--preprocess)"
    ]
    assert samples.limit(2).count == 2


def test_a_single_picture_and_a_list(tmp_path: Path) -> None:
    photos(tmp_path, 3)
    assert opened(tmp_path / "1.png").count == 1
    (tmp_path / "list.txt").write_text("2.png\n0.png\n")
    first = next(iter(opened(tmp_path / "list.txt")))["x"]
    np.testing.assert_array_equal(first, next(iter(opened(tmp_path / "2.png")))["x"])


def test_a_fixed_batch_takes_several(tmp_path: Path) -> None:
    samples = opened(photos(tmp_path, 5), InputSpec("x", TensorProto.FLOAT, (2, 3, 24, 32)))
    assert [sample["x"].shape for sample in samples] == [(2, 3, 24, 32)] * 2
    assert "1 row left over" in samples.description
    with pytest.raises(DataError, match="has 5 pictures, and the model takes 8 at once"):
        opened(tmp_path, InputSpec("x", TensorProto.FLOAT, (8, 3, 24, 32)))


def test_an_input_without_an_axis_of_pictures(tmp_path: Path) -> None:
    samples = opened(photos(tmp_path, 2), InputSpec("x", TensorProto.FLOAT16, (24, 32, 3)))
    assert next(iter(samples))["x"].shape == (24, 32, 3)
    assert next(iter(samples))["x"].dtype == np.float16


def test_bytes_go_to_an_input_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "preprocessor_config.json").write_text('{"image_mean": [0.5], "image_std": [0.5]}')
    facts = ModelFacts(tmp_path / "m" / "a.onnx")
    spec = InputSpec("x", TensorProto.UINT8, (1, 24, 32, 3))
    samples = opened(photos(tmp_path / "p", 1), spec, reading=Reading(), facts=facts)
    np.testing.assert_array_equal(next(iter(samples))["x"][0], picture(), strict=True)


def test_two_pictures_a_sample(tmp_path: Path) -> None:
    photos(tmp_path, 4)
    (tmp_path / "pairs.txt").write_text("0.png 1.png\n2.png 3.png\n")
    pair = (InputSpec("left", TensorProto.FLOAT, X.shape), InputSpec("right", TensorProto.FLOAT, X.shape))
    samples = list(opened(tmp_path / "pairs.txt", *pair))
    np.testing.assert_array_equal(samples[1]["right"], next(iter(opened(tmp_path / "3.png")))["x"])
    with pytest.raises(DataError, match="gives 1 picture a sample, and the model takes 2") as caught:
        opened(tmp_path, *pair)
    assert "right.value=0" in caught.value.hint


def test_inputs_that_take_no_picture_get_a_value(tmp_path: Path) -> None:
    mask = InputSpec("mask", TensorProto.FLOAT, (1, 1, 24, 32))
    size = InputSpec("size", TensorProto.INT64, (1, 2))
    reading = Reading(("scale=255,mask.value=0", "size.value=24,32"))
    samples = opened(photos(tmp_path, 1), X, mask, size, reading=reading)
    sample = next(iter(samples))
    assert (sample["mask"] == 0).all()
    assert sample["size"].tolist() == [[24, 32]]
    assert str(samples.preparations[2]) == "size: always 24, 32 (--preprocess)"
    with pytest.raises(DataError, match=r"'size' .* does not look like an input for pictures") as caught:
        opened(tmp_path, X, size)
    assert "size.value=0" in caught.value.hint
    for text, words in {"size.value=1,2,3": "has 3 numbers", "size.value=0.5": "does not fit its type"}.items():
        with pytest.raises(DataError, match=words):
            opened(tmp_path, X, size, reading=Reading((text,)))


def test_classes_of_folders(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        photos(tmp_path / "p" / name, 2)
    samples = opened(tmp_path / "p")
    assert samples.labels()["_label"][0].tolist() == [0, 1, 0, 1]
    assert samples.limit(3).labels()["_label"][0].tolist() == [0, 1, 0]
    named = ModelFacts(metadata={"names": "{0: 'bird', 1: 'Dog', 2: 'cat'}"})
    assert opened(tmp_path / "p", facts=named).labels()["_label"][0].tolist() == [2, 1, 2, 1]
    many = ModelFacts(outputs=(InputSpec("y", TensorProto.FLOAT, ("n", 1000)),))
    with pytest.raises(DataError, match="has 2 folders of classes, and the model tells 1000 apart"):
        opened(tmp_path / "p", facts=many).labels()
    for name, number in (("dog", "207"), ("cat", "281")):
        (tmp_path / "p" / name).rename(tmp_path / "p" / number)
    assert opened(tmp_path / "p", facts=many).labels()["_label"][0].tolist() == [207, 281, 207, 281]


def test_a_config_beside_the_model_is_used_and_named(tmp_path: Path) -> None:
    table = {"do_resize": True, "size": {"shortest_edge": 28}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(table))
    facts = ModelFacts(tmp_path / "a.onnx")
    samples = opened(photos(tmp_path / "p", 1), reading=Reading(), facts=facts)
    told = samples.preparations[0]
    assert told.origin == "preprocessor_config.json"
    assert told.words == "RGB, shorter side to 28, centre 24×32, (x / 255 - 0.5) / 0.25"
    assert not told.assumed
    own = opened(tmp_path / "p", reading=Reading(("normalize=imagenet",)), facts=facts).preparations[0]
    assert own.origin == "--preprocess and preprocessor_config.json"
    assert own.settings["mean"] == [0.485, 0.456, 0.406]


def test_the_size_of_the_model_goes_before_that_of_a_config(tmp_path: Path) -> None:
    facts = ModelFacts(metadata={"author": "Ultralytics", "task": "detect", "imgsz": "[640, 640]"})
    photos(tmp_path, 1)
    fixed, free = InputSpec("x", TensorProto.FLOAT, (1, 3, 24, 32)), InputSpec("x", TensorProto.FLOAT, (1, 3, "h", "w"))
    assert next(iter(opened(tmp_path, fixed, reading=Reading(), facts=facts)))["x"].shape == (1, 3, 24, 32)
    assert next(iter(opened(tmp_path, free, reading=Reading(), facts=facts)))["x"].shape == (1, 3, 640, 640)
    own = opened(tmp_path, free, reading=Reading(("size=48x64",)), facts=facts)
    assert next(iter(own))["x"].shape == (1, 3, 48, 64)


def test_a_size_that_is_asked_for_keeps_the_share_that_a_config_cuts_off(tmp_path: Path) -> None:
    table = {"do_resize": True, "do_center_crop": True, "size": {"shortest_edge": 256}, "crop_size": 224}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(table))
    free = InputSpec("x", TensorProto.FLOAT, (1, 3, "h", "w"))
    facts, asked = ModelFacts(tmp_path / "a.onnx"), Reading(("size=384",))
    told = opened(photos(tmp_path / "p", 1), free, reading=asked, facts=facts).preparations[0]
    assert (told.settings["size"], told.settings["resize"]) == ([384, 384], 438)


def test_what_was_assumed_is_told(tmp_path: Path) -> None:
    told = opened(photos(tmp_path, 1), reading=Reading()).preparations[0]
    assert told.assumed == "nothing says how pictures are normalised for 'x': 0 … 1 is assumed"


def test_models_that_take_no_pictures(tmp_path: Path) -> None:
    photos(tmp_path, 1)
    with pytest.raises(DataError, match="does not look like an input for pictures"):
        opened(tmp_path, InputSpec("ids", TensorProto.INT64, ("n", "t")))
    with pytest.raises(DataError, match="does not look like an input for pictures") as caught:
        opened(tmp_path, InputSpec("x", TensorProto.FLOAT, ("a", "b", "c", "d")))
    assert "layout=nchw" in caught.value.hint


def test_a_broken_picture_stops_with_its_name(tmp_path: Path) -> None:
    photos(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"1\.png is no JPEG"):
        list(opened(tmp_path))


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    for index in range(3):
        save_picture(tmp_path / f"{index}.png", picture(200, 200, index))
    spec = InputSpec("x", TensorProto.FLOAT, (1, 3, 200, 200))

    def peak(repeats: int) -> int:
        (tmp_path / "list.txt").write_text("0.png\n1.png\n2.png\n" * repeats)
        samples, counts = opened(tmp_path / "list.txt", spec), []
        most = peak_memory(lambda: counts.append(sum(1 for _ in samples)))
        assert set(counts) == {3 * repeats}
        return most

    assert peak(40) < 1.2 * peak(2) + 50_000


def test_pictures_between_those_that_are_asked_for_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, 12)
    read: list[Path] = []
    whole = Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda self, path, how: [read.append(path), whole(self, path, how)][1])
    samples = opened(tmp_path)
    assert len(list(samples.spread(3))) == 3
    assert len(read) == 3
    assert len(list(samples)) == 12


def test_without_pillow_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    photos(tmp_path, 1)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match="reading pictures needs Pillow") as caught:
        opened(tmp_path)
    assert "pip install 'onnxq[images]'" in caught.value.hint


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxq.cli import main

    monkeypatch.chdir(tmp_path)
    classifier(Path("m.onnx"), ["n", 3, 24, 32])
    photos(Path("photos"), 20)
    arguments = ["m.onnx", "-d", "photos", "--preprocess", "normalize=imagenet"]
    assert main(["quantize", *arguments, "-r", "static-int8", "--format", "json", "--fast"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)["preparations"]
    assert told[0]["settings"]["mean"] == [0.485, 0.456, 0.406]
    assert told[0]["origin"] == "--preprocess"
    assert "x: RGB, shrunk to cover 24×32" in printed.err
    assert main(["verify", "m.int8.onnx", "--against", *arguments]) == 0
    assert "20 samples from photos" in capsys.readouterr().out
    assert main(["quantize", "m.onnx", "-d", "photos", "--preprocess", "sise=3", "--force"]) == 2
    assert "Did you mean 'size'?" in capsys.readouterr().err


def test_in_a_project_and_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxq
    from onnxq.cli import main

    monkeypatch.chdir(tmp_path)
    classifier(Path("m.onnx"), ["n", 3, 24, 32])
    photos(Path("photos"), 20)
    entry = '[[models]]\nfloat = "m.onnx"\nrecipe = "static-int8"\ndata = ["photos"]\nfast = true\n'
    Path("onnxq.toml").write_text(f'{entry}preprocess = ["normalize=imagenet"]\n')
    assert main(["quantize"]) == 0
    built = Path("m.int8.onnx").read_bytes()
    assert main(["check"]) == 0
    save_picture(Path("photos/3.png"), picture(seed=99))
    assert main(["check"]) == 1
    assert "photos have changed" in capsys.readouterr().out
    save_picture(Path("photos/3.png"), picture(seed=3))
    Path("onnxq.toml").write_text(f'{entry}preprocess = ["scale=255"]\n')
    assert main(["check"]) == 1
    report = onnxq.quantize(
        "m.onnx",
        "static-int8",
        output="p.onnx",
        data="photos",
        reading=onnxq.Reading(("normalize=imagenet",)),
        fast=True,
    )
    assert report.preparations[0].settings["std"] == [0.229, 0.224, 0.225]
    graphs = [onnxq.load(path).graph for path in ("m.int8.onnx", "p.onnx")]
    assert built
    assert [node.op_type for node in graphs[0].nodes] == [node.op_type for node in graphs[1].nodes]


def test_pictures_that_were_enlarged_are_counted(tmp_path: Path) -> None:
    for index in range(6):
        save_picture(tmp_path / f"{index}.png", picture(8, 8, seed=index) if index < 3 else picture(48, 64, seed=index))
    samples = opened(tmp_path)
    assert not samples.enlarged
    assert len(list(samples)) == 6
    assert samples.enlarged == {tmp_path / f"{index}.png": 4.0 for index in range(3)}


@pytest.mark.parametrize(
    ("limit", "said"), [(1, "1 of 1 picture had to be enlarged for the model, up to 4 times its size"), (3, "3 of 3 p")]
)
def test_no_more_pictures_were_enlarged_than_there_are(limit: int, said: str) -> None:
    read: Any = SimpleNamespace(enlarged=dict.fromkeys("abcdef", 4.0), preparations=())  # another pass has read more
    found = next(_of_pictures(read, limit, known=False))
    assert found.message.startswith(said)


def test_a_single_folder_is_a_class_by_its_number_alone(tmp_path: Path) -> None:
    photos(tmp_path / "one" / "cat", 2)
    assert not opened(tmp_path / "one").labels()
    photos(tmp_path / "two" / "7", 2)
    assert opened(tmp_path / "two").labels()["_label"][0].tolist() == [7, 7]


def test_pictures_beside_folders_are_said_to_have_no_classes(tmp_path: Path) -> None:
    photos(tmp_path, 2)
    photos(tmp_path / "cat", 2)
    photos(tmp_path / "dog", 2)
    samples = opened(tmp_path)
    assert samples.count == 6
    assert samples.notes[0].endswith("pictures lie in it and in folders of it, which are no classes then")
