"""Arrays on a shelf are equal to what was put there, and their places are used again."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq.errors import OutputError
from onnxq.ir.storage import shelf as shelf_module
from onnxq.ir.storage.scratch_file import is_mapped
from onnxq.ir.storage.shelf import Shelf, release_array

SHAPE = (600, 1000)


def numbers(seed):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def test_arrays_come_back_and_places_are_used_again(tmp_path):
    with Shelf(tmp_path) as shelf:
        _check_places(shelf)
    assert not list(tmp_path.iterdir())


def _check_places(shelf):
    kept = [shelf.keep(numbers(seed)) for seed in range(3)]
    size = shelf.size
    view = kept[1].reshape(-1)[5:]  # still in use when its array is not
    for round_ in range(4):
        kept[0] = kept[2] = np.zeros(0)
        kept[0], kept[2] = shelf.keep(numbers(10 + round_)), shelf.keep(numbers(20 + round_).T)
        release_array(kept[0])
    kept[1] = shelf.keep(numbers(30))
    np.testing.assert_array_equal(kept[0], numbers(13))
    np.testing.assert_array_equal(kept[2], numbers(23).T)
    np.testing.assert_array_equal(view, numbers(1).reshape(-1)[5:])
    assert all(is_mapped(array) for array in kept)
    assert shelf.size <= 4 / 3 * size


def test_arrays_below_the_limit_stay_in_memory_up_to_a_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "IN_MEMORY", 500_000)
    with Shelf(tmp_path) as shelf:
        kept = [shelf.keep(numbers(seed)[:50].copy()) for seed in range(4)]
        assert [is_mapped(array) for array in kept] == [False, False, True, True]
        np.testing.assert_array_equal(kept[3], numbers(3)[:50])
        kept[0] = np.zeros(0)
        assert not is_mapped(shelf.keep(numbers(5)[:50].copy()))


def test_small_arrays_stay_in_memory_and_a_missing_folder_is_told(tmp_path):
    small = np.zeros(10)
    with Shelf(tmp_path) as shelf:
        assert shelf.keep(small) is small
    release_array(small)
    with pytest.raises(OutputError, match="cannot take a scratch file"):
        Shelf(tmp_path / "missing")
