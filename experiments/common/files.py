"""Files that survive a crash, and files that carry a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "DamagedError",
    "FileError",
    "component",
    "file_digest",
    "fitting",
    "make_folder",
    "read_regular",
    "read_signed",
    "read_table",
    "seal",
    "sign",
    "sync_folder",
    "unseal",
    "using",
    "verify",
    "write_atomically",
]

KEY = "sha256"


class DamagedError(ValueError):
    """The content of a file does not match its checksum."""


class FileError(OSError):
    """A file cannot be written or read; the message names it and says why."""


@contextmanager
def using(path: Path, how: str) -> Iterator[None]:
    """Turn an OSError into a FileError that names `path`; the system's own may not name a file."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be {how} ({error.strerror or error})") from error


def write_atomically(path: Path, *parts: bytes, keep: Path | None = None) -> None:
    """Write a file that is complete or absent, also after a power cut.

    With `keep`, the file that was there before gets that name. A power cut between the two
    renamings leaves only the kept one.
    """
    with using(path, "written"):
        _write_atomically(path, parts, keep)


def _write_atomically(path: Path, parts: tuple[bytes, ...], keep: Path | None) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(name, 0o644)  # Temporary files are private; these are to be read.
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_regular(path: Path) -> bytes:
    """Read a whole file; raise ValueError for a pipe or a device, which could block forever."""
    # Without O_NONBLOCK, opening a pipe waits until a process writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def sync_folder(folder: Path) -> None:
    """Write the entries of `folder` to the disk, so that renamed and removed files stay so."""
    if os.name == "nt":
        return  # Windows cannot open a folder, and writes its entries in order.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents so that they survive a power cut."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def fitting(name: str) -> str:
    """Shorten a name that exceeds the file-system limit; a digest keeps it unique.

    Examples
    --------
    >>> fitting("ours,lr=0.03"), len(fitting("ours," + 99 * "lr=0.03,"))
    ('ours,lr=0.03', 193)
    """
    if len(name.encode()) <= 200:
        return name
    start = name.encode()[:180].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def component(name: str) -> str:
    """Turn any text into one component of a path, which cannot leave its folder.

    Examples
    --------
    >>> component("split-digits"), component(".."), component("../etc")
    ('split-digits', '_..', '_.._etc')
    """
    plain = "".join("_" if c in "/\\" or not c.isprintable() else c for c in name)
    return fitting(f"_{plain}" if plain[:1] in ("", ".") else plain)


def seal(kind: bytes, content: bytes) -> bytes:
    r"""Return the header of a sealed file: its kind and the checksum of `content`.

    Examples
    --------
    >>> unseal(b"note 1", seal(b"note 1", b"hello") + b"hello")
    b'hello'
    """
    return kind + b"\n" + hashlib.sha256(content).hexdigest().encode() + b"\n"


def unseal(kind: bytes, content: bytes) -> bytes:
    """Return the content after the header; raise DamagedError unless the checksum matches."""
    length = len(kind) + 66
    found = content[length:]
    if content[:length] != seal(kind, found):
        raise DamagedError("its checksum does not match")
    return found


def sign(values: Mapping[str, Any]) -> bytes:
    """Return `values` as JSON with their checksum under "sha256"."""
    signed = {**values, KEY: _digest(values)}
    return (json.dumps(signed, indent=2) + "\n").encode()


def verify(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return signed values without their checksum; raise DamagedError unless it matches.

    Examples
    --------
    >>> verify(json.loads(sign({"acc": 0.5})))
    {'acc': 0.5}
    >>> verify({**json.loads(sign({"acc": 0.5})), "acc": 0.9})
    Traceback (most recent call last):
        ...
    gradproj.experiments.common.files.DamagedError: its checksum does not match
    """
    rest = {key: value for key, value in values.items() if key != KEY}
    if KEY in values and values[KEY] != _digest(rest):
        raise DamagedError("its checksum does not match")
    return rest


def read_signed(path: Path, since: int) -> dict[str, Any]:
    """Read a table that `sign` wrote; files whose "version" is below `since` have no checksum.

    Raises
    ------
    ValueError
        As for `read_table`, and DamagedError if the checksum is missing or does not match.
    """
    values = read_table(path)
    version = values.get("version", 1)
    if KEY not in values and not (type(version) is int and version < since):
        raise DamagedError(f"{path.name} is damaged: it has no checksum")
    try:
        return verify(values)
    except DamagedError as error:
        raise DamagedError(f"{path.name} is damaged: {error}") from error


def read_table(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raise ValueError if it does not."""
    content = read_regular(path)
    try:
        values = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} does not hold a table of keys and values")
    return values


def file_digest(path: Path, length: int | None = None) -> str:
    """Return the sha256 of a file, or of its first `length` bytes; "" if the file is shorter."""
    if not path.is_file():
        return ""
    digest, left = hashlib.sha256(), path.stat().st_size if length is None else length
    with path.open("rb") as file:
        while left and (chunk := file.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return "" if left else digest.hexdigest()


def _digest(values: Mapping[str, Any]) -> str:
    # The digest covers the values, not the text: indentation and the order of keys may change.
    plain = json.loads(json.dumps(values))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
