"""A list of checksums beside the files of a folder, in the format of `sha256sum`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.common.files import file_digest

__all__ = ["SUMS", "damaged_file", "read_sums", "write_sums"]

SUMS = "SHA256SUMS"


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the list: the checksum of each file by its path below the folder."""
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    text = "".join(lines)
    # The last line is of the list itself, which may be damaged too.
    own = hashlib.sha256(text.encode()).hexdigest()
    (folder / SUMS).write_text(f"{text}{own}  {SUMS}\n", encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """Read the list, which is empty without a file. Raise DataError if it is damaged."""
    path = folder / SUMS
    if not path.exists():
        return {}
    *lines, last = path.read_bytes().splitlines(keepends=True) or [b""]
    own = hashlib.sha256(b"".join(lines)).hexdigest()
    if last != f"{own}  {SUMS}\n".encode():
        raise DataError(f"{path} is damaged: its last line is not its checksum")
    pairs = (line.decode().rstrip("\n").split("  ", 1) for line in lines)
    return {name: digest for digest, name in pairs}


def damaged_file(folder: Path) -> str:
    """Name the first file that does not have its checksum, "" if all have; no list is damage."""
    try:
        sums = read_sums(folder)
    except DataError:
        return SUMS
    if not sums:
        return SUMS
    return next((name for name, digest in sums.items() if file_digest(folder / name) != digest), "")
