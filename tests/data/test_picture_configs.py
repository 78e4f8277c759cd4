"""Preprocessing as other tools write it down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnxq.data.pictures.configs import class_names, find_settings, of_metadata, read_config
from onnxq.data.reading import ModelFacts
from onnxq.errors import DataError

VIT = {
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "ViTImageProcessor",
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": {"height": 224, "width": 224},
}
RESNET = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "size": {"shortest_edge": 256},
}
CONVNEXT = {**RESNET, "do_center_crop": None, "crop_size": None, "crop_pct": 0.875, "size": {"shortest_edge": 224}}
MOBILEVIT: dict[str, Any] = {
    "do_flip_channel_order": True,
    "do_normalize": False,
    "do_resize": True,
    "size": 288,
    "crop_size": 256,
    "do_center_crop": True,
}
DETR = {**RESNET, "do_center_crop": False, "do_pad": True, "size": {"shortest_edge": 800, "longest_edge": 1333}}
TIMM = {
    "architecture": "resnet18",
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "crop_mode": "center",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
}


def read(tmp_path: Path, table: Any, name: str = "preprocessor_config.json") -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return read_config(path)


def test_transformers(tmp_path: Path) -> None:
    vit = read(tmp_path, VIT)
    assert vit == {
        "resize": "squash",
        "size": (224, 224),
        "interpolation": "bilinear",
        "scale": 255.0,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
    }
    resnet = read(tmp_path, RESNET)
    assert (resnet["resize"], resnet["size"], resnet["interpolation"]) == (256, (224, 224), "bicubic")
    convnext = read(tmp_path, CONVNEXT)
    assert (convnext["resize"], convnext["size"]) == (256, (224, 224))
    mobilevit = read(tmp_path, MOBILEVIT)
    assert mobilevit == {"resize": 288, "size": (256, 256), "channels": "bgr", "scale": 255.0}
    assert read(tmp_path, DETR)["resize"] == "letterbox"
    old = {**VIT, "size": 224}  # as files were written before sizes had names
    assert read(tmp_path, old) == vit
    assert read(tmp_path, {**old, "do_center_crop": True, "crop_size": 192})["resize"] == 224
    assert read(tmp_path, {**old, "size": 800, "max_size": 1333})["resize"] == 800
    large = read(tmp_path, {**CONVNEXT, "size": {"shortest_edge": 384}})
    assert (large["resize"], large["size"]) == ("squash", (384, 384))


def test_timm(tmp_path: Path) -> None:
    found = read(tmp_path, TIMM, "config.json")
    assert (found["resize"], found["size"], found["scale"]) == (235, (224, 224), 255.0)
    assert found["interpolation"] == "bicubic"
    assert found["mean"] == (0.485, 0.456, 0.406)


def test_ultralytics(tmp_path: Path) -> None:
    found = read(tmp_path, "task: detect\nimgsz:\n- 640\n- 480\n", "metadata.yaml")
    assert found["size"] == (640, 480)
    assert (found["resize"], found["pad"], found["scale"]) == ("letterbox", (114,), 255.0)
    assert read(tmp_path, "task: classify\nimgsz: 224\n", "args.yaml")["resize"] == "shortest"
    found = of_metadata({"author": "Ultralytics", "task": "segment", "imgsz": "[320, 320]"})
    assert found["size"] == (320, 320)


def test_openvino(tmp_path: Path) -> None:
    info = {
        "model_info mean_values": "123.675 116.28 103.53",
        "model_info scale_values": "58.395 57.12 57.375",
        "model_info resize_type": "fit_to_window_letterbox",
        "model_info pad_value": "114",
        "model_info reverse_input_channels": "True",
    }
    found = of_metadata(info)
    assert found == {
        "mean": (123.675, 116.28, 103.53),
        "std": (58.395, 57.12, 57.375),
        "scale": 1.0,
        "resize": "letterbox",
        "align": "center",
        "pad": (114,),
        "channels": "rgb",
    }
    tags = "".join(f'<{key.split()[1]} value="{value}"/>' for key, value in info.items())
    xml = f"<net><rt_info><model_info>{tags}</model_info></rt_info></net>"
    assert read(tmp_path, xml, "model.xml") == found
    odd = {"mean_values": "None", "scale_values": "[1, 0, 1]", "pad_value": "grey", "resize_type": "fit_to_window"}
    told = of_metadata({f"model_info {key}": value for key, value in odd.items()})
    assert told == {"resize": "letterbox", "align": "topleft", "pad": (0,)}


def test_the_standard_of_onnx() -> None:
    found = of_metadata({"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"})
    assert found == {"channels": "bgr", "normalize": "bytes"}
    assert of_metadata({"author": "somebody", "imgsz": "[1, 2]"}) == {}


def facts(folder: Path, **metadata: str) -> ModelFacts:
    return ModelFacts(folder / "model.onnx", metadata)


def test_what_stands_beside_the_model_goes_before_its_metadata(tmp_path: Path) -> None:
    metadata = {"author": "Ultralytics", "task": "detect", "imgsz": "[320, 320]"}
    assert find_settings(facts(tmp_path, **metadata))[1] == "the model's metadata"
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    assert find_settings(facts(tmp_path, **metadata))[1] == "config.json"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(VIT))
    found, origin = find_settings(facts(tmp_path, **metadata))
    assert (found["size"], origin) == ((224, 224), "preprocessor_config.json")
    assert find_settings(facts(tmp_path, **metadata), "none") == ({}, "")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(RESNET))
    assert find_settings(facts(tmp_path), str(other))[0]["resize"] == 256


def test_the_folder_above_one_called_onnx_counts(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(VIT))
    assert find_settings(facts(tmp_path / "onnx"))[0]["resize"] == "squash"
    (tmp_path / "models").mkdir()
    assert find_settings(facts(tmp_path / "models")) == ({}, "")


def test_files_about_something_else_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "args.yaml").write_text("- a\n- b\n")
    (tmp_path / "model.xml").write_text("<html>")
    assert find_settings(facts(tmp_path)) == ({}, "")


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("{", "preprocessor_config.json", "cannot be read"),
        ("[]", "preprocessor_config.json", "no JSON object"),
        ("{}", "preprocessor_config.json", "says nothing about pictures"),
        (json.dumps({**VIT, "size": {"height": -1, "width": 2}}), "a.json", "a size is"),
        (json.dumps({**VIT, "size": {"long": 2}}), "a.json", "a size is"),
        (json.dumps({**VIT, "resample": 17}), "a.json", "the interpolation None is not known"),
        (json.dumps({**VIT, "image_mean": "half"}), "a.json", "image_mean is 'half'"),
        (json.dumps({**VIT, "rescale_factor": 0}), "a.json", "rescale_factor is 0"),
        (json.dumps({**VIT, "do_center_crop": True, "crop_size": 8}), "a.json", "stretches pictures and then cuts"),
        (json.dumps({"pretrained_cfg": {"input_size": 3}}), "config.json", "input_size is 3"),
        (
            json.dumps({"pretrained_cfg": {"input_size": [3, 8, 8], "crop_mode": "border"}}),
            "config.json",
            "crop_mode 'border'",
        ),
        ("<net", "model.xml", "cannot be read"),
        ("a: {b}", "metadata.yaml", "only simple YAML"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(tmp_path: Path, content: str, name: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, content, name)
    assert words in caught.value.message
    assert name in caught.value.message
    assert caught.value.hint


def test_names_of_classes(tmp_path: Path) -> None:
    assert class_names(facts(tmp_path)) == []
    assert class_names(facts(tmp_path, names="{0: 'cat', 1: 'dog'}")) == ["cat", "dog"]
    assert class_names(facts(tmp_path, names="['cat', 'dog']")) == ["cat", "dog"]
    (tmp_path / "config.json").write_text('{"id2label": {"1": "dog", "0": "cat"}}')
    assert class_names(facts(tmp_path)) == ["cat", "dog"]
    (tmp_path / "config.json").write_text("{")
    assert class_names(facts(tmp_path)) == []
