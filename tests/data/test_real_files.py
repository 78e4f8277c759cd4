"""Models that others trained, from files: arrays are made pictures, recordings and texts, and come back.

Runs where the models are. `pytest -m slow tests/data/test_real_files.py` quantizes each as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from picture_support import save_picture
from sound_support import save_wav

from onnxq import quantize
from onnxq.data.reading import Reading
from onnxq.data.validation import input_specs
from onnxq.ir import infer_types, load
from onnxq.ir.passes import normalise
from onnxq.stages.files import open_data

REAL = Path(__file__).parents[2] / "../shared/real"
CAFFE, MEAN, STD = [103.939, 116.779, 123.68], np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FEW = 4


@dataclass(frozen=True)
class Case:
    """How the values of an input become bytes again, `bytes = (values · std + mean) · scale`, and what a user says."""

    preprocess: tuple[str, ...]
    scale: float = 1.0
    mean: object = 0.0
    std: object = 1.0
    bgr: bool = False
    step: float = 0.51  # of a byte: how far values may be from those of the arrays
    sound: bool = False


CASES = {
    "fastestdet": Case(("channels=bgr,normalize=unit",), 255, bgr=True),
    "squeezenet_fp16": Case(("channels=bgr,scale=1,mean=103.939,116.779,123.68",), mean=CAFFE, bgr=True, step=1.1),
    "yunet_n": Case(("channels=bgr,normalize=bytes",), bgr=True),
    "deeplab_v3": Case(("normalize=signed",), 127.5, mean=1.0),
    "mlsd_tiny": Case(("scale=1,std=1,1,1,255",)),
    "ldc_edge": Case(("channels=bgr,scale=1,mean=103.939,116.779,123.68",), mean=CAFFE, bgr=True),
    "fns_mosaic_nc8": Case(("normalize=bytes",)),
    "ppocr_det_v3": Case(("channels=bgr,normalize=imagenet,size=320",), 255, MEAN, STD, bgr=True, step=99),
    "fsanet_var": Case(("channels=bgr,normalize=signed",), 127.5, mean=1.0, bgr=True),
    "eran_sigmoid": Case(("normalize=unit",), 255),
    "lstr_lane": Case(("normalize=imagenet", "input_mask.value=0"), 255, MEAN, STD),
    "basic_pitch": Case(("rate=22050",), 32767, sound=True, step=1.01),
}
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the models are not here")


def arrays(name: str) -> tuple[str, np.ndarray]:
    """The input that takes files, and a few of its samples."""
    path = REAL / f"{name}_calib.npz"
    if path.exists():
        with np.load(path) as data:
            return data.files[0], data[data.files[0]][:FEW]
    found = [np.load(one)["input_rgb"] for one in sorted((REAL / f"{name}_calib").iterdir())[:FEW]]
    return "input_rgb", np.concatenate(found)


def saved(name: str, case: Case, folder: Path) -> Path:
    """Write files of which the arrays are made."""
    _, values = arrays(name)
    for index, one in enumerate(values.astype(np.float64)):
        if case.sound:
            save_wav(folder / f"{index}.wav", np.clip(one[:, 0], -1, 1), 22050)
            continue
        wide = one if one.shape[-1] in (3, 4) else np.moveaxis(one, 0, -1)
        pixels = np.clip(np.rint((wide[..., :3] * case.std + case.mean) * case.scale), 0, 255).astype(np.uint8)
        pixels = pixels[..., ::-1] if case.bgr else pixels
        save_picture(folder / f"{index}.png", pixels[..., 0] if pixels.shape[-1] == 1 else np.ascontiguousarray(pixels))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_files_give_the_arrays_back(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = load(REAL / f"{name}.onnx")
    normalise(model, needs=("drop_initializer_inputs",))
    infer_types(model)
    opened = open_data(model, [saved(name, case, tmp_path)], None, None, Reading(preprocess=case.preprocess))
    assert opened is not None
    feeds, (wanted, values) = list(opened), arrays(name)
    assert len(feeds) == FEW
    step = case.step / case.scale / np.min(case.std)
    for found, expected in zip(feeds, values, strict=True):
        assert found[wanted][0].shape == expected.shape
        assert np.abs(found[wanted][0].astype(np.float64) - expected).max() <= step + 1e-3


def test_sentences_go_to_a_model_of_bytes(tmp_path: Path) -> None:
    values = arrays("nnsplit_en")[1]
    texts = [" ".join(bytes(row).decode("utf-8", "ignore").split()) for row in values]
    (tmp_path / "s.txt").write_text("\n".join(texts), "utf-8")
    model = load(REAL / "nnsplit_en.onnx")
    normalise(model)
    infer_types(model)
    opened = open_data(model, [tmp_path / "s.txt"], None, None)
    assert opened is not None
    assert [sample["input"][0].tobytes().decode() for sample in opened] == texts


@pytest.mark.slow
def test_a_model_of_bytes_quantizes_from_sentences(tmp_path: Path) -> None:
    rows = arrays("nnsplit_en")[1]
    texts = [" ".join(bytes(row).decode("utf-8", "ignore").split()) for row in rows]
    (tmp_path / "s.txt").write_text("\n".join(texts), "utf-8")
    reading, output = Reading(preprocess=("length=256",)), tmp_path / "q.onnx"
    quantize(REAL / "nnsplit_en.onnx", data=[tmp_path / "s.txt"], reading=reading, output=output, fast=True)
    assert output.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_quantize_from_files(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder, output = saved(name, case, tmp_path / "files"), tmp_path / "q.onnx"
    reading = Reading(preprocess=case.preprocess)
    report = quantize(REAL / f"{name}.onnx", data=[folder], reading=reading, output=output, fast=True)
    assert report.comparison is not None
    assert report.preparations
    assert output.exists()


FEATURES = {
    "gtcrn": "features=stft,n_fft=512,hop=256,window=sqrt-hann,rate=16000",
    "oww_embedding": "features=logmel,n_mels=32,log=10,scale=32768,offset=2,rate=16000",
}


def recordings(folder: Path, seconds: float = 3) -> Path:
    """Two recordings of tones that change."""
    times = np.arange(int(16000 * seconds)) / 16000
    for index, pitch in enumerate((180.0, 240.0)):
        tone = sum(np.sin(2 * np.pi * pitch * k * times * (1 + 0.1 * np.sin(2 * times))) / k for k in range(1, 9))
        save_wav(folder / f"{index}.wav", 0.2 * tone * (0.6 + 0.4 * np.sin(7 * times)), 16000)
    return folder


@pytest.mark.parametrize("name", FEATURES)
def test_recordings_go_to_models_of_features(name: str, tmp_path: Path) -> None:
    model = load(REAL / f"{name}.onnx")
    normalise(model)
    infer_types(model)
    seconds = 0.25 if name == "gtcrn" else 3  # a run of gtcrn for each step of 16 ms
    opened = open_data(model, [recordings(tmp_path, seconds)], None, None, Reading(preprocess=(FEATURES[name],)))
    assert opened is not None
    samples = list(opened)
    assert len(samples) > 1
    wanted = {spec.name: spec.shape for spec in input_specs(model)}
    for sample in samples:
        assert {key: len(array.shape) for key, array in sample.items()} == {k: len(v or ()) for k, v in wanted.items()}
        assert all(np.isfinite(array).all() for array in sample.values())
    if name == "gtcrn":  # caches are zeros at first, and then what the step before gave
        assert not samples[0]["conv_cache"].any()
        assert samples[1]["conv_cache"].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_models_of_features_quantize_from_recordings(name: str, tmp_path: Path) -> None:
    folder, output = recordings(tmp_path / "wavs"), tmp_path / "q.onnx"
    quantize(
        REAL / f"{name}.onnx", data=[folder], reading=Reading(preprocess=(FEATURES[name],)), output=output, fast=True
    )
    assert output.exists()
