"""Data by URL: fetched once for a run through fsspec, into a folder that goes away with it.

Processes that a run starts find the folder by a variable of their environment.

A URL may end with `#sha256=HEX`: what is fetched must have this digest. A folder has that of the names of its files and
their digests.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from onnxq.data.extras import need
from onnxq.errors import DataError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")
DIGEST = "#sha256="
SHARED = "ONNXQ_FETCHED"  # variable that names the folder of a run


def is_remote(source: str) -> bool:
    """Whether data are named by a URL, such as `s3://bucket/calib.npz`, and not by a path."""
    return URL.match(source) is not None


def local_copy(source: str) -> Path:
    """Return where a source is in the file system: a path as it is, a URL once it is fetched.

    Raises:
        DataError: fsspec or the package for this protocol is missing, nothing is there, or it has another digest.

    """
    return _fetched(source) if is_remote(source) else Path(source)


@cache
def _fetched(source: str) -> Path:
    url, _, wanted = source.partition(DIGEST)
    fsspec = need("fsspec", "remote", f"reading {url}")
    place = Path(_folder()) / hashlib.sha256(source.encode()).hexdigest()
    name = file_name(url)
    if not place.exists():  # it appears whole
        shared = _folder()
        Path(shared).mkdir(0o700, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=shared))
        try:
            _fetch(fsspec, url, scratch / name, wanted.lower())
            with suppress(OSError):  # another process was faster
                scratch.rename(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return place / name


def _fetch(fsspec: Any, url: str, target: Path, wanted: str) -> None:
    """Fetch a file or a folder, and check its digest if one is given."""
    try:
        system, path = fsspec.url_to_fs(url)
        if system.isdir(path):
            system.get(path.rstrip("/") + "/", f"{target}/", recursive=True)
        else:
            system.get_file(path, str(target))
    except Exception as error:  # each protocol has its own, and those of packages that are missing
        missing = isinstance(error, FileNotFoundError)
        reason = "there is nothing" if missing else (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{url} cannot be read: {reason}", _hint(error, url)) from error
    found = digest(target) if wanted else ""
    if found != wanted:
        raise DataError(f"{url} has the SHA-256 {found}, not {wanted}", "Check the URL, or give the new digest.")


def file_name(url: str) -> str:
    """Return the name of the file or folder that a URL is of: the innermost one, without what a server is asked."""
    link = next(part for part in url.split("::") if "://" in part)
    path = link.partition("?")[0] if link.startswith("http") else link
    return Path(path.partition("://")[2]).name or "data"


def share_fetched() -> dict[str, str]:
    """Return variables with which processes that this one starts read what it has fetched, and each other's data."""
    return {SHARED: _folder()}


def _hint(error: Exception, url: str) -> str:
    if isinstance(error, ImportError):
        web = url.startswith("http")
        return "Install them: pip install 'onnxq[remote]'" if web else "Install the package that it names."
    return "Check the URL, and that this machine may read it."


def digest(path: Path) -> str:
    """Return SHA-256 of a file, or of the names and digests of all files of a folder."""
    if path.is_dir():
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(f"{name} {digest(path / name)}\n" for name in names).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def _folder() -> str:
    """Return the folder of all that is fetched: of the run that started this process, or one that ends with it.

    It is made once something is fetched.
    """
    shared = os.environ.get(SHARED, "")
    if shared and Path(shared).parent.is_dir():
        return shared
    from onnxq.ir.storage.temporary import folder_of_process  # it costs the import of onnx

    return str(folder_of_process("onnxq-data-"))
