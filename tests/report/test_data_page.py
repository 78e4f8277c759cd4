"""The page of `onnxq data --html`, and the sheet in the report of a run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_support import Cli, runner
from picture_support import classifier, photos
from text_support import encoder, save_tokenizer, sentences

from onnxq import quantize


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(capsys)


def test_a_page_has_pictures_channels_and_preprocessing(here: Path, cli) -> None:
    classifier(here / "m.onnx")
    photos(here / "photos", 20)
    result = cli("data", "m.onnx", "-d", "photos", "--preprocess", "normalize=imagenet", "--html", "p.html")
    assert result.code == 0, result.err
    page = Path("p.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 12
    assert page.count('class="channel"') == 3
    assert "shrunk to cover 16×16" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing is loaded
    again = cli("data", "m.onnx", "-d", "photos", "--html", "p.html")
    assert again.code == 2
    assert "p.html exists already" in again.err
    assert cli("data", "m.onnx", "-d", "photos", "--html", "p.html", "--force").code == 0


def test_a_page_of_sentences_says_how_long_they_are(here: Path, cli) -> None:
    encoder(here / "m.onnx")
    save_tokenizer(here)
    Path("s.txt").write_text("\n".join(sentences(20)))
    assert cli("data", "m.onnx", "-d", "s.txt", "--html", "p.html").code == 0
    page = Path("p.html").read_text()
    assert "tokens a text, mean" in page
    assert "<img" not in page


def test_warnings_and_names_are_escaped(here: Path, cli) -> None:
    classifier(here / "<b>m.onnx")
    np.savez("d.npz", x=np.zeros((20, 3, 16, 16), np.float32))
    assert cli("data", "<b>m.onnx", "-d", "d.npz", "--html", "p.html").code == 0
    page = Path("p.html").read_text()
    assert "constant-samples" in page
    assert "<b>" not in page


@pytest.mark.parametrize(("name", "sentence"), [("p.htm", "Name it .html"), ("nowhere/p.html", "nowhere")])
def test_a_page_that_cannot_be_written_is_refused(here: Path, cli, name: str, sentence: str) -> None:
    classifier(here / "m.onnx")
    photos(here / "photos", 2)
    result = cli("data", "m.onnx", "-d", "photos", "--html", name)
    assert result.code == 2
    assert sentence in result.err


def test_the_report_of_a_run_has_the_sheet(here: Path) -> None:
    classifier(here / "m.onnx")
    photos(here / "photos", 4)
    report = quantize("m.onnx", "static-int8", data="photos", fast=True)
    assert len(report.pictures) == 4
    page = report.to_html()
    assert page.count('<img src="data:image/jpeg;base64,') == 4
    assert "img-src data:" in page
    assert "pictures" not in report.as_dict()
