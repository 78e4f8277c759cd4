"""How figures and names are written for people."""

import pytest

from onnxq.text import did_you_mean, milliseconds, printable, size_change, truncate


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
    assert (size_change(400, 100), size_change(100, 150)) == ("4.0 times smaller", "1.5 times larger")
    assert (milliseconds(1.23456), milliseconds(12.3456)) == ("1.235 ms", "12.3 ms")
    assert printable("a\n\x1b[31m b") == "a \\x1b[31m b"


def test_similar_names_are_offered_the_most_similar_first():
    known = ["input_ids", "attention_mask", "input_idx"]
    assert did_you_mean("attn_mask", known) == "Did you mean 'attention_mask'?"
    assert did_you_mean("input_ids", known, most=2) == "Did you mean 'input_ids' or 'input_idx'?"
    assert did_you_mean("input_i", ["input_ids"], cutoff=0.95) == ""
    assert did_you_mean("zzz", known) == ""
