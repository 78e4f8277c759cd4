"""Lookups of targets and kernel times: work that plans ask for again and again is done once."""

from __future__ import annotations

from importlib.resources import files

import onnxq.targets.tables as tables
from onnxq.targets import load_costs
from onnxq.targets.target import load_target


def test_the_folder_of_targets_is_read_once_however_often_they_are_asked_for(monkeypatch):
    load_target("cpu-vnni")  # reads the file of this target and of those that it is based on
    reads = []
    monkeypatch.setattr(tables, "files", lambda package: reads.append(package) or files(package))
    tables.stored_targets.cache_clear()
    for _ in range(100):
        load_target("cpu-vnni")
        tables.target_names()
    assert reads == ["onnxq.targets"]


def test_a_kernel_time_is_interpolated_once(monkeypatch):
    costs = load_costs("cpu-vnni")
    monkeypatch.setattr(costs, "_known", {})
    first = costs.conv(19, 23, 9, 31, 1)
    monkeypatch.setattr(costs, "_interpolated", None)
    assert costs.conv(19, 23, 9, 31, 1) == first
