"""Data by URL are fetched once, checked by their digest, and give the samples of the file that they name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
from helpers import build, floats, node

from onnxq.data import remote
from onnxq.data.remote import digest, file_name, is_remote, local_copy, share_fetched
from onnxq.data.samples import input_specs, open_samples
from onnxq.errors import DataError
from onnxq.ir import Model, infer_types, parse
from onnxq.runtime.processes import Processes

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def _nothing_fetched() -> Iterator[None]:
    remote._fetched.cache_clear()
    yield
    remote._fetched.cache_clear()
    remote._folder.cache_clear()


@pytest.fixture
def model() -> Model:
    made = build([node("Relu", "x", "y")], {"x": ["N", 4]}, ["y"], {})
    model = parse(made.SerializeToString())
    infer_types(model)
    return model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "calib.npz", x=floats(3, 4))
    return tmp_path / "calib.npz"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and counts how often each is sent."""

    sent: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.sent.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://bucket/calib.npz", True),
        ("zip://a.npz::https://host/b.zip", True),
        ("file:///data/a.npz", True),
        ("package.module:function", False),
        ("C:\\data\\a.npz", False),
        ("C://data/a.npz", False),
        ("folder/a.npz", False),
    ],
)
def test_urls_are_told_from_paths(source: str, expected: bool) -> None:
    assert is_remote(source) == expected
    if not expected:
        assert local_copy(source) == Path(source)


@pytest.mark.parametrize("whole_folder", [False, True])
def test_samples_of_a_url_are_those_of_the_file(model: Model, file: Path, whole_folder: bool) -> None:
    source = (file.parent if whole_folder else file).as_uri()
    found = open_samples(source, input_specs(model))
    expected = open_samples(file, input_specs(model))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/a/calib.npz?X-Signature=a/b%2Fc", "calib.npz"),
        ("zip://in/calib.npz::https://host/b.zip", "calib.npz"),
        ("simplecache::s3://bucket/calib.npz", "calib.npz"),
        ("s3://bucket/what?.npz", "what?.npz"),
        ("https://host", "host"),
    ],
)
def test_a_file_has_the_name_by_which_it_is_read(url: str, name: str) -> None:
    assert file_name(url) == name


def test_a_signed_url_is_read_as_the_file_that_it_names(model: Model, url: str) -> None:
    assert open_samples(f"{url}?token=a/b", input_specs(model)).count == 3


def test_memory_of_fsspec_works_as_well(model: Model, file: Path) -> None:
    fsspec.filesystem("memory").pipe("/onnxq/calib.npz", file.read_bytes())
    assert open_samples("memory://onnxq/calib.npz", input_specs(model)).count == 3


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    """The file on a server of this machine."""
    pytest.importorskip("aiohttp")
    Quiet.sent.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(file.parent)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/calib.npz"
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_once(model: Model, url: str) -> None:
    assert open_samples(url, input_specs(model)).count == 3
    asked = len(Quiet.sent)
    assert open_samples(url, input_specs(model)).count == 3
    assert len(Quiet.sent) == asked
    with pytest.raises(DataError, match=r"nothing\.npz cannot be read: there is nothing"):
        local_copy(url.replace("calib", "nothing"))


def test_a_server_is_asked_once_by_all_processes_of_a_run(file: Path, url: str) -> None:
    with Processes(1, variables=share_fetched()) as one:
        first = one.submit(local_copy, url).result()
    asked = len(Quiet.sent)
    with Processes(1, variables=share_fetched()) as other:
        assert other.submit(local_copy, url).result() == first == local_copy(url)
    assert first.read_bytes() == file.read_bytes()
    assert len(Quiet.sent) == asked > 0


def test_another_digest_is_refused(file: Path) -> None:
    url, right = file.as_uri(), digest(file)
    assert local_copy(f"{url}#sha256={right.upper()}").read_bytes() == file.read_bytes()
    with pytest.raises(DataError, match=f"has the SHA-256 {right}, not abc"):
        local_copy(f"{url}#sha256=abc")
    assert local_copy(url).is_file()


def test_a_digest_of_a_folder_covers_names_and_bytes(file: Path) -> None:
    url, before = file.parent.as_uri(), digest(file.parent)
    assert local_copy(f"{url}#sha256={before}").is_dir()
    file.rename(file.with_name("other.npz"))
    assert digest(file.parent) != before


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot be read: Protocol not known: nowhere"):
        local_copy("nowhere://a/b.npz")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(DataError, match="needs fsspec, which is not installed") as caught:
        local_copy("file:///a/b.npz")
    assert caught.value.hint == "Install it: pip install 'onnxq[remote]'"


def test_what_the_web_needs_is_named_with_its_extra() -> None:
    from onnxq.data.remote import _hint

    missing = ImportError("HTTPFileSystem requires aiohttp")
    assert _hint(missing, "https://a.b/c.npz") == "Install them: pip install 'onnxq[remote]'"
    assert _hint(missing, "s3://a/c.npz") == "Install the package that it names."
