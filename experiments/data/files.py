"""Files of data sets: where they live, whether they are whole, how they are written."""

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.common.files import read_regular

__all__ = ["data_dir", "file_md5", "read_checked", "user_cache", "writing"]


# Unpacked, in bytes; the largest packed file that is published has 47 million.
LARGEST = 1 << 28


def data_dir(given: str | Path | None = None) -> Path:
    """Folder of the data sets: the argument, else GRADPROJ_DATA, else the user's cache.

    Examples
    --------
    >>> data_dir("my/data").as_posix()
    'my/data'
    """
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get("GRADPROJ_DATA"):
        return Path(os.environ["GRADPROJ_DATA"]).expanduser()
    return user_cache()


def user_cache() -> Path:
    """Folder where the operating system keeps what programs can fetch again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "gradproj"


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turn failures to write (no permission, disk full) into a DataError that names the folder."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"cannot write {what} in {folder}: {error.strerror or error}; free some space, or "
            "choose another folder with --data-dir or GRADPROJ_DATA"
        ) from error


def file_md5(path: Path) -> str:
    """MD5 of a file, the sum that publishers of data sets give."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _checked(data: bytes, sha256: str, path: Path, name: str) -> bytes:
    """Return the data if its checksum is the publisher's; else name the damaged file."""
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise DataError(
            f"{path} is damaged: {len(data):,} bytes with sha256 {found[:16]}…, where the "
            f"publisher's file has {sha256[:16]}…; delete it and run `gradproj data fetch {name}`"
        )
    return data


def _read(path: Path, name: str) -> bytes:
    try:
        return read_regular(path)
    except ValueError as error:
        raise DataError(
            f"{path}: {error}; delete it and run `gradproj data fetch {name}`"
        ) from error


def read_checked(path: Path, sha256: str, name: str) -> bytes:
    """Read a file, or its gzipped twin, and check that it is the publisher's."""
    if path.exists():
        return _checked(_read(path, name), sha256, path, name)
    packed = path.with_name(path.name + ".gz")
    content = _read(packed, name)
    # The last four bytes declare the unpacked size. They may be wrong, so no more than
    # that is unpacked.
    declared = int.from_bytes(content[-4:], "little")
    try:
        if declared > LARGEST:
            raise EOFError(f"it would unpack to {declared:,} bytes, more than any file here")
        with gzip.open(io.BytesIO(content)) as file:
            data = file.read(declared + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{packed} is damaged: {error}; delete it and run `gradproj data fetch {name}`"
        ) from error
    return _checked(data, sha256, packed, name)
