"""Files of sentences: what is read of them, and how each kind of broken file is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxq.data.text.sentences import read_sentences
from onnxq.errors import DataError


def saved(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_line_is_a_sentence(tmp_path: Path) -> None:
    found = read_sentences(saved(tmp_path, "s.txt", "\ufeffone\r\n\n two words\u2028here \n"))
    assert found.rows == (("one",), (" two words\u2028here ",))
    with pytest.raises(DataError, match="and no columns"):
        read_sentences(tmp_path / "s.txt", ["text"])


def test_objects_give_text_labels_and_scores(tmp_path: Path) -> None:
    lines = [{"text": "a", "label": 1, "score": 0.5, "name": "yes", "more": [1]}, {"text": "b", "label": 0, "score": 2}]
    lines[1]["name"] = "no"
    found = read_sentences(saved(tmp_path, "s.jsonl", "\n".join(map(json.dumps, lines)) + "\n"))
    assert found.rows == (("a",), ("b",))
    np.testing.assert_array_equal(found.numbers["label"], np.array([1, 0]), strict=True)
    np.testing.assert_array_equal(found.numbers["score"], np.array([0.5, 2.0]), strict=True)
    assert found.words == {"name": ("yes", "no")}


@pytest.mark.parametrize("text", ['[\n{"text": "a"}]', '[{"text": "a"}, {"text": "b"}]'])
def test_one_list_of_json_is_told_from_lines(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a b.jsonl").write_text(text)
    with pytest.raises(DataError, match="is one list of JSON, not lines") as caught:
        read_sentences(Path("a b.jsonl"))
    line = caught.value.hint.removeprefix("Write an object in each line: ").partition(", and give")[0]
    subprocess.run(["bash", "-c", line.replace("python ", f"{sys.executable} ", 1)], check=True)
    assert read_sentences(Path("lines.jsonl")).rows[0] == ("a",)


def test_a_web_page_is_no_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a web page"):
        read_sentences(saved(tmp_path, "s.txt", "<!doctype HTML>\n<p>not found\n"))


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_csv_file_with_another_sign_between_its_columns(sign: str, tmp_path: Path) -> None:
    found = read_sentences(saved(tmp_path, "s.csv", f"text{sign}label\na{sign}1\nb, c{sign}0\n"))
    assert found.rows == (("a",), ("b, c",))


def test_tables_give_pairs_and_several_texts(tmp_path: Path) -> None:
    path = saved(tmp_path, "s.csv", 'first,second,score\n"a, b",c,0.5\nd,e,1\n')
    assert read_sentences(path, ["first,second"]).rows == (("a, b", "c"), ("d", "e"))
    found = read_sentences(path, ["first", "second"])
    assert found.rows == (("a, b",), ("c",), ("d",), ("e",))
    assert found.pairs == (0, 0, 1, 1)
    assert found.numbers["score"].tolist() == [0.5, 0.5, 1, 1]
    assert read_sentences(saved(tmp_path, "s.tsv", "id\tbody\n1\tx\n")).rows == (("x",),)


def test_a_field_may_hold_a_long_document(tmp_path: Path) -> None:
    document = "word " * 40_000
    found = read_sentences(saved(tmp_path, "long.csv", f'text,label\n"{document}",1\n'), ())
    assert [len(text) for (text,) in found.rows] == [len(document)]


def test_lines_without_text_are_counted(tmp_path: Path) -> None:
    found = read_sentences(saved(tmp_path, "s.csv", "text,label\na,1\n  ,2\nb,3\n"))
    assert found.numbers["label"].tolist() == [1, 3]
    assert found.notes == (f"{tmp_path / 's.csv'}: 1 line without text left out",)


BROKEN = {
    "latin.txt": (b"caf\xe9\n", "is no text in UTF-8: byte 3"),
    "utf16.txt": ("text".encode("utf-16"), "is no text in UTF-8: byte 0"),
    "zero.txt": (b"a\nb\0c\n", "line 2 has a zero byte"),
    "empty.txt": (b"", "holds no sentences"),
    "blank.txt": (b" \n\n\t\n", "holds no sentences"),
    "pointer.txt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a Git LFS pointer"),
    "zip.csv": (b"PK\x03\x04\xff\xfe\x00", "is no text in UTF-8"),
    "empty.jsonl": (b"\n", "holds no sentences"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b', "line 2 is not JSON"),
    "list.jsonl": (b'["a"]\n', "line 1 is a list, not an object"),
    "word.jsonl": (b'"a"\n', "line 1 is 'a', not an object"),
    "deep.jsonl": (b"[" * 100_000, "line 1 is not JSON"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 5}\n', "line 2 has int as 'text', and text is needed"),
    "none.jsonl": (b'{"label": 1}\n', "has no column of text: it has 'label'"),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "line 1 has half a character"),
    "several.jsonl": (b'{"a": "x", "b": "y"}\n', "has several columns of text: 'a' and 'b'"),
    "head.csv": (b"text,label\n", "holds no sentences"),
    "twice.csv": (b"text,text\na,b\n", "names the column 'text' twice"),
    "nameless.csv": (b"text,\na,b\n", "has a column without a name"),
    "ragged.csv": (b"text,label\na,1\nb,c,2\n", "line 3 has 3 fields, and the first line 2"),
    "quote.csv": (b'text,label\n"a,1\nb,2\n', "is no row of a table"),
    "numbers.csv": (b"x,y\n1,2\n", "has no column of text"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    with pytest.raises(DataError, match=message) as caught:
        read_sentences(saved(tmp_path, name, content))
    assert name in caught.value.message
    assert caught.value.hint


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    path = saved(tmp_path, "s.jsonl", '{"question": "a"}\n{"question": null}\n')
    with pytest.raises(DataError, match="has no column 'qestion'") as caught:
        read_sentences(path, ["qestion"])
    assert "question" in caught.value.hint
    with pytest.raises(DataError, match="line 2 has no 'question'"):
        read_sentences(path, ["question"])


def test_a_line_whose_text_is_missing_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, "s.jsonl", '{"text": "a cat", "label": 1}\n{"text": null, "label": 0}\n')
    with pytest.raises(DataError, match=r"line 2 has no 'text', and text is needed"):
        read_sentences(path)
