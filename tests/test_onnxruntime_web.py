"""Models for `--target web` in the real onnxruntime-web, where Node and the package are there: nothing fetches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime_web import Session, Web, WebError, missing

import onnxq
from onnxq.errors import DataError
from onnxq.stages.kernel_timing import Timing
from onnxq.targets import load_costs
from onnxq.targets.target import load_target

SAMPLES = Path(__file__).parents[1] / "sample_models"
MODELS = ["digits_attention", "digits_cnn", "digits_depthwise", "digits_lstm"]
SLOW = {"MatMulNBits", "QAttention"}  # no fast kernel in WebAssembly
IMAGES = 8
web_only = [pytest.mark.web, pytest.mark.skipif(bool(missing()), reason=missing() or "there")]


def images() -> dict[str, np.ndarray]:
    with np.load(SAMPLES / "digits_test.npz") as data:
        return {"image": data["image"][:IMAGES]}


def operators(model: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(model).graph.node)


class Made(dict[str, Path]):
    """Sample models quantized for the web, with data and without, each when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, stem: str) -> Path:
        name, _, kind = stem.partition(".")
        data, self[stem] = [SAMPLES / "digits_calibration.npz"][: kind == "static"], self.folder / f"{stem}.onnx"
        recipe, limit = onnxq.load_recipe("auto").for_target("web"), 8 if data else None
        onnxq.quantize(SAMPLES / f"{name}.onnx", recipe, output=self[stem], data=data, sample_limit=limit)
        return self[stem]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Made(tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with Web(optimized=False) as opened:
        yield opened


def loaded(web: Web, model: Path) -> Session:
    return web.load(model.read_bytes())


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_no_operator_is_written_that_webassembly_has_no_fast_kernel_for(
    quantized: dict[str, Path], name: str, kind: str
) -> None:
    model = quantized[f"{name}.{kind}"]
    assert not SLOW & set(operators(model))
    stored = {tensor.name: tensor for tensor in onnx.load(model).graph.initializer}
    for node in onnx.load(model).graph.node:
        if node.op_type == "QuantizeLinear" and node.input[2] in stored:
            assert stored[node.input[2]].data_type == onnx.TensorProto.UINT8, node.name


def test_kernel_times_for_the_web_say_what_was_measured_there() -> None:
    costs = load_costs("web")
    assert all("onnxruntime-web" in costs.table[name]["source"] for name in ("pointwise", "matmul", "borders"))
    for rows, faster in ((1, False), (256, True)):
        in_float, in_integers = costs.matmul(rows, 768, 768)
        assert (in_integers < in_float) is faster
    in_float, in_integers = costs.conv(64, 64, 9, 56 * 56, 64)
    assert in_integers > 3 * in_float


def test_kernels_of_the_web_cannot_be_timed_on_this_processor(tmp_path: Path) -> None:
    assert not load_target("web").at_hand
    with pytest.raises(DataError, match="kernels of the target web are not those of onnxruntime on this machine"):
        onnxq.quantize(
            SAMPLES / "digits_cnn.onnx",
            onnxq.load_recipe("auto").for_target("web"),
            output=tmp_path / "q.onnx",
            data=[SAMPLES / "digits_calibration.npz"],
            timing=Timing(benchmark=True),
        )


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
class TestInOnnxruntimeWeb:
    pytestmark = web_only

    def test_a_quantized_model_gives_what_onnxruntime_gives(
        self, web: Web, quantized: dict[str, Path], name: str, kind: str
    ) -> None:
        model = quantized[f"{name}.{kind}"]
        there = web.run(loaded(web, model), images())
        exact = ort.SessionOptions()  # WebAssembly adds in 32 bits, which processors without VNNI do not
        exact.add_session_config_entry("session.x64quantprecision", "1")
        (here,) = ort.InferenceSession(model, exact).run(None, images())
        # codes may be rounded the other way where a float kernel in front of them differs in its last bit
        step = np.abs(here).max() / 50
        np.testing.assert_allclose(there["logits"], here, rtol=0, atol=step)
        np.testing.assert_array_equal(there["logits"].argmax(-1), here.argmax(-1))

    def test_it_computes_in_8_bit_there(self, web: Web, quantized: dict[str, Path], name: str, kind: str) -> None:
        session = web.load(quantized[f"{name}.{kind}"].read_bytes(), profile=True)
        web.run(session, images())
        found = {event["args"]["op_name"] for event in web.close(session) if event["cat"] == "Node"}
        written = operators(quantized[f"{name}.{kind}"])
        if "QuantizeLinear" in written or "DynamicQuantizeLinear" in written:
            kernels = {"QLinearConv", "MatMulIntegerToFloat", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM"}
            assert found & kernels


class TestArithmetic:
    pytestmark = web_only

    @pytest.mark.parametrize("weights", [np.int8, np.uint8])
    def test_integer_products_are_exact_to_the_last_code(self, web: Web, weights: type) -> None:
        random = np.random.default_rng(3)
        low, high = (-128, 128) if weights is np.int8 else (0, 256)
        w = random.integers(low, high, (257, 33)).astype(weights)
        x = random.integers(128, 256, (5, 257)).astype(np.uint8)  # where 16 bits would saturate
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
            "product",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, x.shape)],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, [5, 33])],
            [onnx.numpy_helper.from_array(w, "w")],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        there = web.run(web.load(model.SerializeToString()), {"x": x})["y"]
        np.testing.assert_array_equal(there, x.astype(np.int32) @ w.astype(np.int32))

    def test_a_damaged_model_is_refused_in_words_and_the_next_one_runs(self, web: Web) -> None:
        with pytest.raises(WebError, match="protobuf"):
            web.load(b"not a model")
        assert web.run(loaded(web, SAMPLES / "digits_cnn.onnx"), images())["logits"].shape == (IMAGES, 10)
