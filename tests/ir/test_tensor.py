"""Constants: every element type and form of storage reads right, and goes out right under any name."""

from __future__ import annotations

import mmap

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import run
from ir_support import X, assert_consistent, model_of, text_model
from onnx import TensorProto, numpy_helper

from onnxq.errors import ModelError
from onnxq.ir import ArrayTensor, DeferredTensor, Patch, StoredTensor, commit, parse
from onnxq.ir.storage.external import release
from onnxq.ir.wire import join

ARRAYS = {
    "float": np.float32([[1.5, -2], [np.inf, 3]]),
    "double": np.float64([1, 2, 3]),
    "half": np.float16([1, 2, 3]),
    "bfloat16": np.array([1, 2, 3], ml_dtypes.bfloat16),
    "float8": np.array([1, 2, 3], ml_dtypes.float8_e4m3fn),
    "int4": np.array([-8, 7, 3], ml_dtypes.int4),
    "uint4": np.array([[0, 15], [3, 4]], ml_dtypes.uint4),
    "int8": np.int8([-128, 127]),
    "uint16": np.uint16([0, 65535]),
    "int64": np.int64([-1, 2**40]),
    "bool": np.array([True, False]),
    "complex": np.complex64([1 + 2j]),
    "string": np.array(["a", "ß"], object),
    "scalar": np.float32(7),
    "empty": np.zeros((0, 3), np.float32),
}


def tensors(array):
    proto = numpy_helper.from_array(array, "old")
    yield StoredTensor(memoryview(proto.SerializeToString()), None)
    yield ArrayTensor(array)
    made = ArrayTensor(array)
    yield DeferredTensor(made.dtype, made.shape, lambda: array)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_every_type_reads_and_writes(array):
    for tensor in tensors(array):
        assert (tensor.shape, tensor.size) == (array.shape, array.size)
        back = tensor.numpy()
        assert [i.decode() if isinstance(i, bytes) else i for i in back.reshape(-1).tolist()] == array.reshape(
            -1
        ).tolist()
        for name in ("old", "new"):
            framed = onnx.GraphProto.FromString(join(tensor.encode(name, number=5)))
            written = framed.initializer[0]
            assert written.name == name
            assert written.data_type == tensor.dtype
            assert numpy_helper.to_array(written).tolist() == array.tolist()
        raw = tensor.raw()
        assert (raw is None) == (tensor.dtype == TensorProto.STRING)
        assert raw is None or len(raw) == tensor.nbytes


@pytest.mark.parametrize(
    ("kind", "values"),
    [("FLOAT", [1.5, -2.0]), ("INT64", [3, -4]), ("INT8", [-1, 2]), ("FLOAT16", [1.0, 2.0]), ("UINT4", [1, 15])],
)
def test_typed_fields_read_like_raw_ones(kind, values):
    proto = onnx.helper.make_tensor("t", getattr(TensorProto, kind), [2], values)
    assert not proto.raw_data
    tensor = StoredTensor(memoryview(proto.SerializeToString()), None)
    assert tensor.numpy().tolist() == values
    assert not tensor.numpy().flags.writeable
    raw = TensorProto(dims=[2], data_type=proto.data_type, raw_data=bytes(tensor.raw()))
    assert numpy_helper.to_array(raw).tolist() == values


def test_sub_byte_types_are_cast_and_packed():
    tensor = ArrayTensor(np.int8([-8, 7, 3]), TensorProto.INT4)
    assert tensor.raw() == bytes([0x78, 0x03])
    assert tensor.nbytes == 2


def test_views_of_the_file_are_not_copied():
    data = memoryview(text_model("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, w) }", {"w": X}).SerializeToString())
    array = parse(data).graph.initializers["w"].tensor.numpy()
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert start < array.ctypes.data < start + len(data)
    assert not array.flags.writeable


def test_array_of_the_caller_stays_writeable():
    array = np.zeros(3, np.float32)
    tensor = ArrayTensor(array)
    assert array.flags.writeable
    assert not tensor.numpy().flags.writeable


def test_deferred_constants_are_computed_when_written_and_checked():
    calls = []

    def compute():
        calls.append(1)
        return np.ones(4, np.float32)

    model = model_of("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, w) }", {"w": np.zeros(4, np.float32)})
    patch = Patch(model.graph)
    patch.rewire(model.graph.nodes[0], 1, patch.constant(DeferredTensor(TensorProto.FLOAT, (4,), compute), "w"))
    commit([patch])
    assert_consistent(model)
    chunks = model.chunks()
    assert calls == []
    assert sum(map(len, chunks)) == len(model.serialize())
    assert calls == [1]
    assert run(model.serialize(), {"x": X})[0].tolist() == X.tolist()
    with pytest.raises(ValueError, match=r"announced as \[5\] came out as \[4\]"):
        DeferredTensor(TensorProto.FLOAT, (5,), compute).raw()


def test_release_drops_pages_and_keeps_content(tmp_path):
    (tmp_path / "w").write_bytes(bytes(range(256)) * 4096)
    with (tmp_path / "w").open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    release(view[5000:900000])
    assert bytes(view[:512]) == bytes(range(256)) * 2
    release(memoryview(b"x" * 100000))  # no mapping: left alone


BROKEN = {
    "too few bytes": ({"dims": [4], "data_type": 1, "raw_data": b"abc"}, "needs 16 bytes but 3 are stored"),
    "too many bytes": ({"dims": [1], "data_type": 1, "raw_data": b"a" * 8}, "needs 4 bytes but 8 are stored"),
    "2^40 elements": ({"dims": [1 << 40], "data_type": 1, "raw_data": b"abc"}, "needs 4398046511104 bytes"),
    "2^120 elements": ({"dims": [1 << 40] * 3, "data_type": 1, "raw_data": b"abc"}, "but 3 are stored"),
    "2^40 typed": ({"dims": [1 << 40], "data_type": 1, "float_data": [1.0]}, "cannot be read"),
    "2^40 strings": ({"dims": [1 << 40], "data_type": 8, "string_data": [b"a"]}, "cannot be read"),
    "negative": ({"dims": [-4], "data_type": 1, "raw_data": b"abc"}, "negative dimension"),
    "no type": ({"dims": [1], "data_type": 0, "raw_data": b"abcd"}, "data type 0"),
    "unknown type": ({"dims": [1], "data_type": 99, "raw_data": b"abcd"}, "data type 99"),
    "no data": ({"dims": [1], "data_type": 1}, "has no data"),
    "wrong field": ({"dims": [2], "data_type": 1, "int64_data": [1, 2]}, "cannot be read"),
}


@pytest.mark.parametrize(("fields", "sentence"), BROKEN.values(), ids=BROKEN)
def test_broken_tensors_are_refused_without_allocating(fields, sentence):
    proto = TensorProto(name="w", **fields)
    with pytest.raises(ModelError, match=sentence):
        StoredTensor(memoryview(proto.SerializeToString()), None).numpy()


def test_a_transposed_constant_is_seen_without_a_copy_and_released_with_its_source(monkeypatch):
    source = ArrayTensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    turned = DeferredTensor(source.dtype, (3, 2), lambda: source.numpy().T, [source])
    assert np.shares_memory(turned.view(), source.numpy())
    assert turned.numpy().flags.c_contiguous
    np.testing.assert_array_equal(turned.numpy(), source.numpy().T)
    released = []
    monkeypatch.setattr(ArrayTensor, "release", lambda self: released.append(self))
    turned.release()
    assert released == [source]
