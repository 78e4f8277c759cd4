"""How figures and names are written for people."""

import codecs

import pytest

from onnxq.text import (
    decibels,
    did_you_mean,
    milliseconds,
    percent,
    printable,
    readable,
    size,
    size_change,
    speed_change,
    truncate,
    write_plainly,
)


def test_long_names_keep_what_tells_them_apart() -> None:
    names = [f"/model/encoder/layer.{i}/attention/self/query/MatMul" for i in range(12)]
    short = truncate(names, 42)
    assert short[3] == "…layer.3/attention/self/query/MatMul"
    assert len(set(short)) == 12
    assert truncate(["short", "names"], 42) == ["short", "names"]
    assert truncate([], 5) == []


@pytest.mark.parametrize("most", [5, 6, 20])
def test_no_name_stays_too_long(most: int) -> None:
    assert [len(name) for name in truncate(["x" * 100, "y" * most, "z"], most)] == [most, most, 1]


def test_sizes_latencies_and_names() -> None:
    assert (size_change(400, 100), size_change(100, 150)) == ("4.0× smaller", "1.5× larger")
    assert [size(count) for count in (999, 1000, 999_949, 999_950, 999_999_999)] == [
        "999 bytes",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "1.00 GB",
    ]
    assert (milliseconds(1.23456), milliseconds(12.3456)) == ("1.23 ms", "12.3 ms")
    assert printable("a\n\x1b[31m b") == "a \\x1b[31m b"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.78, "1.3× faster"),
        (0.5, "2.0× faster"),
        (0.96, "1.04× faster"),
        (0.999, "as fast"),
        (1.0, "as fast"),
        (1.004, "as fast"),
        (1.05, "1.05× slower"),
        (1.1, "1.1× slower"),
        (2.55, "2.5× slower"),
        (0.0, "1000000000.0× faster"),
    ],
)
def test_a_ratio_has_one_direction(ratio: float, said: str) -> None:
    assert speed_change(ratio) == said


def test_sizes_that_hardly_differ() -> None:
    assert (size_change(100, 100), size_change(103, 100)) == ("the same size", "1.03× smaller")
    assert size_change(0, 0) == "the same size"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((22.3, 20.9), "22.3 ms 20.9 ms"),
        ((10.5, 7.833), "10.5 ms 7.8 ms"),
        ((12.9, 9.445), "12.9 ms 9.4 ms"),
        ((1.234, 0.95), "1.23 ms 0.95 ms"),
        ((0.026, 0.02), "0.026 ms 0.020 ms"),
        ((12.0, 0.02), "12.000 ms 0.020 ms"),
    ],
)
def test_latencies_of_a_row_have_equal_decimals(row: tuple[float, float], said: str) -> None:
    first, second = row
    assert f"{milliseconds(first, second)} {milliseconds(second, first)}" == said


@pytest.mark.parametrize(
    ("share", "digits", "said"),
    [(0.3, 0, "30 %"), (0.004, 0, "<1 %"), (0.0, 0, "<1 %"), (0.0004, 1, "<0.1 %"), (0.019, 1, "1.9 %")],
)
def test_a_share_is_never_nothing(share: float, digits: int, said: str) -> None:
    assert percent(share, digits) == said


def test_similar_names_are_offered_the_most_similar_first():
    known = ["input_ids", "attention_mask", "input_idx"]
    assert did_you_mean("attn_mask", known) == "Did you mean 'attention_mask'?"
    assert did_you_mean("input_ids", known, most=2) == "Did you mean 'input_ids' or 'input_idx'?"
    assert did_you_mean("input_i", ["input_ids"], cutoff=0.95) == ""
    assert did_you_mean("zzz", known) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("größe".encode().decode("ascii", "surrogateescape"), "größe"),
        (b"b\xe4d".decode("utf-8", "surrogateescape"), "b\\xe4d"),
        ("plain", "plain"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_file_name_in_another_encoding_is_readable(name: str, said: str) -> None:
    assert (readable(name), printable(name)) == (said, said)


def test_a_sign_that_an_encoding_lacks_is_written_in_ascii() -> None:
    codecs.register_error("plainly", write_plainly)
    assert "m.onnx → größe, 3.7× …".encode("ascii", "plainly") == b"m.onnx -> gr\\xf6\\xdfe, 3.7x ..."
    assert "größe → ✓".encode("cp1252", "plainly") == b"gr\xf6\xdfe -> \\u2713"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "plainly")


def test_no_decibels_have_no_sign() -> None:
    assert [decibels(value) for value in (-0.04, 0.0, -0.06, 12.25)] == ["0.0 dB", "0.0 dB", "-0.1 dB", "12.2 dB"]
