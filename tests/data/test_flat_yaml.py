"""The YAML of trainers: read as PyYAML reads it, or refused."""

from __future__ import annotations

import pytest

from onnxq.data.pictures.flat_yaml import read_yaml
from onnxq.errors import DataError

COCO = """
# COCO8 dataset
path: ../datasets/coco8  # dataset root
train: images/train
val: [images/val, 'images/more']
test:

names:
  0: person
  1: "a # bicycle"
  2: 'it''s'
nc: 3
scale: 1.5e-3
download: |
  import os
  names: no

  x = {1: 2}
colour: true
"""
METADATA = """description: Ultralytics YOLOv8n model
author: Ultralytics
docs: https://docs.ultralytics.com
license: AGPL-3.0 License (https://ultralytics.com/license)
stride: 32
task: detect
imgsz:
- 640
- 480
names:
- person
- 7
args:
  batch: 1
  half: false
  none: null
"""


def test_a_data_file_is_read() -> None:
    found = read_yaml(COCO, "coco8.yaml")
    assert found["path"] == "../datasets/coco8"
    assert found["val"] == ["images/val", "images/more"]
    assert found["test"] is None
    assert found["names"] == {0: "person", 1: "a # bicycle", 2: "it's"}
    assert (found["nc"], found["scale"], found["colour"]) == (3, 0.0015, True)


@pytest.mark.parametrize("text", [COCO, METADATA])
def test_it_means_what_pyyaml_reads(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    ours, theirs = read_yaml(text, "x"), yaml.safe_load(text)
    assert {key: value for key, value in ours.items() if key not in ("download", "scale")} == {
        key: value for key, value in theirs.items() if key not in ("download", "scale")
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: {b: 1}\n", 1),
        ("a: &x 1\n", 1),
        ("- 1\n", 1),
        ("a: 1\n  b: 2\n", 2),
        ("just text\n", 1),
        ("a: !!python/x\n", 1),
    ],
)
def test_what_is_more_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(DataError, match=f"^x.yaml, line {line}: only simple YAML is read"):
        read_yaml(text, "x.yaml")
