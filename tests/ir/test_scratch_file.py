"""A scratch file without a name: what is put there comes back, and nothing is ever seen of it."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest

from onnxq.errors import OutputError
from onnxq.ir import ArrayTensor
from onnxq.ir.storage import scratch_file
from onnxq.ir.storage.scratch_file import Spool, is_mapped, scratch_folder


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(scratch_file, "SPOOLED", 16)


def test_arrays_come_back_equal_and_outlive_the_spool(tmp_path, small):
    given = [np.arange(size, dtype=dtype) for size, dtype in ((5000, "i1"), (7, "f8"), (3001, "f4"))]
    with Spool(tmp_path) as file:
        kept = [file.keep(array) for array in given]
        assert list(tmp_path.iterdir()) == []
        assert file.keep(kept[0]) is kept[0]
    for one, other in zip(given, kept, strict=True):
        assert is_mapped(other)
        assert not other.flags.writeable
        assert other.flags.aligned
        assert (other.dtype, other.tolist()) == (one.dtype, one.tolist())


def test_small_arrays_and_strings_stay_in_memory(tmp_path, small):
    with Spool(tmp_path) as file:
        for array in (np.zeros(3, "f4"), np.array(["a" * 99] * 9, object)):
            assert file.keep(array) is array


def test_blocks_become_one_array(tmp_path):
    blocks = [np.full((2, 3), n, np.int8) for n in range(4)]
    with Spool(tmp_path) as file:
        assert file.fill(blocks, np.dtype("i1"), (8, 3)).tolist() == np.concatenate(blocks).tolist()


def test_many_arrays_keep_few_files_open(tmp_path, small):
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with Spool(tmp_path) as file:
        kept = [file.keep(np.full(300, n, np.int32)) for n in range(2000)]
        assert not opened or len(os.listdir("/proc/self/fd")) <= opened + 3
    assert [int(array[-1]) for array in kept] == list(range(2000))
    tensor = ArrayTensor(kept[7])
    tensor.release()
    assert (tensor.numpy() == 7).all()


def test_released_pages_are_read_again(tmp_path, small):
    with Spool(tmp_path) as file:
        tensor = ArrayTensor(file.keep(np.arange(100_000, dtype=np.int32)))
    tensor.release()
    assert tensor.numpy().sum() == 100_000 * 99_999 // 2
    ArrayTensor(np.arange(9000)).release()  # nothing to let go of


def test_a_full_disk_is_a_sentence(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with Spool(tmp_path) as file, pytest.raises(OutputError, match="cannot take a scratch file"):
            file.keep(np.zeros(4 << 20, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(OutputError, match="cannot take a scratch file"):
        Spool(tmp_path / "missing")
    assert os.listdir(tmp_path) == []


def _fails_inside(output):
    with scratch_folder(output) as folder:
        (folder / "part").write_bytes(b"x")
        assert folder.parent == output.parent
        assert folder.name.startswith(f".{output.name}-")
        raise KeyError


def test_a_scratch_folder_lies_next_to_the_output_and_goes(tmp_path):
    with pytest.raises(KeyError):
        _fails_inside(tmp_path / "out.stats")
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(OutputError, match="cannot be written"), scratch_folder(tmp_path / "missing" / "out"):
        pass
