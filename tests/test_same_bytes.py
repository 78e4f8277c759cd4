"""The same command writes the same bytes on every processor."""

from __future__ import annotations

import pytest
from as_processor import available
from bench_same_bytes import NATIVE, SAMPLES, digest

DATA = SAMPLES / "digits_calibration.npz"
FAMILIES = [family for family in ("avx2", "sse41") if available(family)]


@pytest.mark.skipif(not FAMILIES, reason="this machine cannot mask CPUID")
@pytest.mark.parametrize("name", ["digits_cnn", "digits_lstm"])
def test_processors_write_the_same_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    found = {
        family: digest(SAMPLES / f"{name}.onnx", DATA, family, ["--samples", "24"]) for family in (NATIVE, *FAMILIES)
    }
    assert len(set(found.values())) == 1, found
