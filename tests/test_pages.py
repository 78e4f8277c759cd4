"""Each page of docs/how-to, followed command by command in an empty folder with files of the names that it takes."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import build, floats, node
from picture_support import photos
from sound_support import detector, recordings
from text_support import decoder, encoder, save_tokenizer, sentences

import onnxq
from onnxq.cli import main

ROOT = Path(__file__).parents[1]
HOW_TO = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b[A-Z]{4,}\b")  # names such as HOST that a reader replaces
# Network, seconds of work on real features, or other programs: each has tests of its own.
LEFT_OUT = ("gtcrn.onnx", "embedding.onnx")


def network(path: Path, shape: list[int | str], metadata: dict[str, str] | None = None) -> None:
    """Two convolutions and a head of four classes over pictures."""
    nodes = [
        node("Conv", "input w1", "c1", name="/conv1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1", name="/relu1"),
        node("Conv", "r1 w2", "c2", name="/conv2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2", name="/relu2"),
        node("GlobalAveragePool", "r2", "p", name="/pool"),
        node("Flatten", "p", "f", name="/flatten"),
        node("MatMul", "f w3", "scores", name="/head/MatMul"),
    ]
    weights = {"w1": floats(8, 3, 3, 3) / 5, "w2": floats(16, 8, 3, 3, seed=1) / 8, "w3": floats(16, 4, seed=2)}
    model = build(nodes, {"input": shape}, ("scores",), weights)
    onnx.helper.set_model_props(model, metadata or {})
    onnx.save(model, path)


def plain(folder: Path) -> None:
    """A classifier of pictures of any size, and samples to calibrate, test and score it on."""
    network(folder / "model.onnx", ["n", 3, "h", "w"])
    for seed, name in enumerate(("calibration", "test", "labelled")):
        rough = np.repeat(np.repeat(floats(12, 3, 4, 4, seed=seed), 4, 2), 4, 3)
        images = (rough + 0.1 * floats(12, 3, 16, 16, seed=seed + 9)).astype(np.float32)
        scores = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"input": images})[0]
        labels = {"_label": np.argmax(scores, axis=1)} if name == "labelled" else {}
        np.savez(folder / f"{name}.npz", input=images, **labels)


def with_result(folder: Path) -> None:
    plain(folder)
    onnxq.quantize(folder / "model.onnx", data=folder / "calibration.npz", fast=True)


def yolo(path: Path) -> None:
    """A model with the metadata of ultralytics, and a data set of its kind next to it."""
    network(path, [1, 3, 32, 32], {"author": "Ultralytics", "task": "detect", "stride": "8", "imgsz": "[32, 32]"})
    photos(path.parent / "images", 8, 64, 96)
    path.with_name("coco8.yaml").write_text("path: .\ntrain: images\nval: images\nnames:\n  0: class 0\n  1: class 1\n")


def other_tools(folder: Path) -> None:
    plain(folder)
    (folder / "folder").mkdir()
    shutil.copy(folder / "model.onnx", folder / "folder")
    yolo(folder / "yolo11n.onnx")


def files(folder: Path) -> None:
    network(folder / "classifier.onnx", ["n", 3, 32, 32])
    photos(folder / "photos", 8, 96, 128)
    yolo(folder / "yolo.onnx")
    encoder(folder / "encoder.onnx", width=32)
    save_tokenizer(folder)
    lines = [f"{text},{number % 4}" for number, text in enumerate(sentences(12))]
    (folder / "sentences.csv").write_text("\n".join(["text,label", *lines]))
    detector(folder / "vad.onnx", 512)
    recordings(folder / "wavs", 2, 0.5)
    np.savez(folder / "steps.npz", input=floats(24, 1, 512), sr=np.full(24, 16000))


def large(folder: Path) -> None:
    plain(folder)
    (folder / "model.onnx").rename(folder / "large.onnx")
    decoder(folder / "decoder.onnx", 32, places=256)
    save_tokenizer(folder, pad=False, longest=256)
    (folder / "corpus.txt").write_text("\n".join(sentences(16)))
    (folder / "held-out.txt").write_text("\n".join(sentences(8, seed=1)))


def project(folder: Path) -> None:
    plain(folder)
    for place in ("models/classifier.onnx", "models/detector.onnx"):
        (folder / place).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "model.onnx", folder / place)
    for place in ("data/calibration.npz", "data/street.npz", "data/street-test.npz"):
        (folder / place).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "calibration.npz", folder / place)
    (toml,) = (content for language, content in blocks("projects") if language == "toml")
    (folder / "onnxq.toml").write_text(toml)


def machines(folder: Path) -> None:
    network(folder / "model.onnx", ["n", 3, 16, 16])
    photos(folder / "pictures", 8, 24, 32)


def blocks(name: str) -> list[tuple[str, str]]:
    return BLOCK.findall((HOW_TO / f"{name}.md").read_text("utf-8"))


def parts(name: str) -> list[str]:
    """A page that is read from the top, or its sections where a reader needs one of them."""
    page = (HOW_TO / f"{name}.md").read_text("utf-8")
    return re.split(r"^## ", page, flags=re.MULTILINE) if name == "coming-from" else [page]


def own_data(folder: Path) -> None:
    """The two Python examples of the page: the first makes an `.npz` file, the second is a module."""
    plain(folder)
    made, module = (content for language, content in blocks("quantize-with-data") if language == "python")
    exec(compile(made.replace("224", "16"), "made.py", "exec"), {})
    (folder / "my_module.py").write_text(module.replace("224", "16"))


FOLDERS: dict[str, Callable[[Path], None]] = {
    "choose-a-target": with_result,
    "coming-from": other_tools,
    "from-files": files,
    "large-models": large,
    "projects": project,
    "publish-models": plain,
    "quantize-with-data": own_data,
    "report": plain,
    "scale": machines,
    "verify": with_result,
}
WITHOUT_COMMANDS = {"pre-commit", "python"}
PARTS = [
    pytest.param(name, part, id=f"{name}-{number}")
    for name in FOLDERS
    for number, part in enumerate(parts(name))
    if "\nonnxq " in part or "   onnxq " in part
]


def arguments_of(line: str) -> list[str]:
    """The words of a line as a shell splits them, in the working folder."""
    words = shlex.split(line, comments=True)[1:]
    return [name for word in words for name in (sorted(str(p) for p in Path().glob(word)) if "*." in word else [word])]


def follow(content: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """Run each command of some blocks. Returns how many there were."""
    done = 0
    for line in (line.strip() for text in content for line in text.splitlines()):
        if not line.startswith("onnxq ") or PLACEHOLDER.search(line) or any(name in line for name in LEFT_OUT):
            continue
        code = main(arguments_of(line))
        assert code == 0, f"{line}\n{capsys.readouterr().err}"
        done += 1
    return done


def test_every_page_is_followed_or_has_no_command() -> None:
    assert {page.stem for page in HOW_TO.glob("*.md")} == set(FOLDERS) | WITHOUT_COMMANDS


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_every_command_of_a_page_works_in_turn(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    FOLDERS[name](tmp_path)
    assert follow([content for language, content in BLOCK.findall(part) if not language], capsys)


def test_the_commands_of_the_readme_work_in_turn_on_a_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(tmp_path)
    part = (ROOT / "README.md").read_text("utf-8").partition("## Your own model")[2]
    assert follow([content for language, content in BLOCK.findall(part) if not language], capsys) == 6


@pytest.mark.parametrize("name", ["publish-models", "python"])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain(tmp_path)
    np.savez("images.npz", image=np.load("calibration.npz")["input"])
    known: dict[str, object] = {}
    for language, content in blocks(name):
        if language == "python" or "onnxq." in content:
            exec(compile(content.replace('samples={"image"', 'samples={"input"'), f"{name}.md", "exec"), known)
    assert capsys.readouterr().out


def test_the_findings_that_a_page_shows_are_those_of_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    project(tmp_path)
    one = '[[models]]\nfloat = "models/{}.onnx"\ndata = ["data/calibration.npz"]\n'
    Path("onnxq.toml").write_text("".join(one.format(name) for name in ("classifier", "detector")))
    assert main(["quantize"]) == 0
    changed = onnx.load("models/classifier.onnx")
    changed.doc_string = "another one"
    onnx.save(changed, "models/classifier.onnx")
    Path("models/tagger.onnx").write_bytes(Path("models/detector.onnx").read_bytes()[:-900])
    Path("onnxq.toml").write_text(
        "".join(one.format(name) for name in ("classifier", "detector", "tagger")).replace(
            'models/detector.onnx"\n', 'models/detector.onnx"\nmax-size = 2000\n'
        )
    )
    capsys.readouterr()
    assert main(["check"]) == 1
    printed = re.sub(r"\d[\d,]*", "#", capsys.readouterr().out)
    (shown,) = (content for language, content in blocks("pre-commit") if not language)
    for line in re.sub(r"\d[\d,]*", "#", shown).splitlines():
        assert line.strip() in printed, f"{line}\n{printed}"
