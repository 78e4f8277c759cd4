"""What a result is warned of: accuracy, latency, saturation; and that a good one is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from onnxq.report.result_warnings import result_warnings
from onnxq.verification.families import FamilyFigures
from onnxq.verification.records import Comparison, Latency, OutputComparison
from onnxq.warning import WarningLine


def compared(sqnr: float, ratio: float | None = None) -> Comparison:
    output = OutputComparison("y", "float32", 10, False, sqnr, 0.125, 0.9, None)
    latency = None if ratio is None else Latency(2.0, 2.0 * ratio, ratio, 100)
    return Comparison((output,), 5, latency)


def codes(comparison: Comparison | None, *families: FamilyFigures, **options: bool) -> list[str]:
    found = result_warnings(comparison, families, **options)
    assert all(warning.message and warning.remedy.endswith(".") for warning in found)
    return [warning.code for warning in found]


def test_a_good_result_is_not_warned_of() -> None:
    exact = FamilyFigures("cpu-vnni", 40.0, 0.5, here=True)
    assert codes(compared(40.0, 0.6), exact, replace(exact, family="cpu-avx2", saturates=True, sqnr=39.5)) == []
    assert codes(None) == []


def test_below_20_db() -> None:
    assert codes(compared(20.0)) == []
    found = result_warnings(compared(12.6))
    assert [warning.code for warning in found] == ["low-sqnr"]
    assert found[0].message == "'y' has 12.6 dB, an error of 23 % of its size: 40 dB are an error of 1 %"
    assert "--min-sqnr" in found[0].remedy
    lost = compared(-math.inf)
    said = "'y' is zero in the float model, and here it is not: it is of no use"
    assert result_warnings(lost)[0].message == said
    overflown = replace(lost, outputs=(replace(lost.outputs[0], max_abs=math.inf),))
    assert result_warnings(overflown)[0].message == "'y' overflows: it is of no use"


def test_other_text_is_no_lost_signal_if_there_are_figures() -> None:
    label = OutputComparison("label", "string", 10, False, -math.inf, 0.0, None, 90.0)
    alone = Comparison((label,), 5)
    assert result_warnings(alone)[0].message == "'label' has other text: it is of no use"
    assert codes(replace(alone, outputs=(label, *compared(40.0).outputs))) == []


def test_below_10_db_a_model_is_of_no_use() -> None:
    assert "of no use" in result_warnings(compared(-0.6))[0].message
    assert "107 %" in result_warnings(compared(-0.6))[0].message


def test_accuracy_on_random_numbers_says_nothing() -> None:
    assert codes(compared(2.6), made_up=True) == []


def test_slower_than_float() -> None:
    found = result_warnings(compared(40.0, 1.06))
    assert [warning.code for warning in found] == ["slower-than-float"]
    assert found[0].message == "the quantized model is slower than float here (1.06× slower)"
    assert "--benchmark" in found[0].remedy
    assert codes(compared(40.0, 1.06), for_size=True) == ["slower-than-float"]


@pytest.mark.parametrize(("ratio", "expected"), [(0.94, []), (0.95, ["size-only"]), (1.02, ["size-only"])])
def test_gains_from_size_only(ratio: float, expected: list[str]) -> None:
    assert codes(compared(40.0, ratio)) == expected
    assert codes(compared(40.0, ratio), for_size=True) == []


def test_saturation_on_a_family() -> None:
    exact = FamilyFigures("cpu-vnni", 38.3, 0.5, here=True)
    lossy = FamilyFigures("cpu-avx2", 30.1, 0.9, saturates=True)
    found = result_warnings(compared(38.3), (exact, lossy))
    assert [warning.code for warning in found] == ["saturation"]
    assert found[0].message == "8-bit products saturate on cpu-avx2, which takes 8.2 dB off"
    assert "--reduce-range" in found[0].remedy
    here = result_warnings(compared(30.1), (replace(exact, here=False), replace(lossy, here=True)))
    assert "cpu-avx2 (this processor)" in here[0].message


def test_an_accuracy_that_is_not_known_is_not_judged() -> None:
    unknown = FamilyFigures("cpu-avx2", None, 0.9, saturates=True)
    assert codes(compared(38.3), FamilyFigures("cpu-vnni", 38.3), unknown) == []


def test_what_a_comparison_found_goes_first() -> None:
    beyond = WarningLine("beyond-calibration", "values lie outside", "Calibrate again.")
    assert codes(replace(compared(5.0), warnings=(beyond,))) == ["beyond-calibration", "low-sqnr"]
