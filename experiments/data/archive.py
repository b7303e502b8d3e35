"""Unpack an archive that may be hostile: nothing leaves the folder, and it is all or nothing."""

import gzip
import hashlib
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.checksums import write_sums
from gradproj.experiments.data.files import writing

__all__ = ["extract"]

# A broken gzip stream is an OSError too, so it has to be caught before failures to write are.
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error)


def extract(archive: Path, root: Path, folder: str) -> Path:
    """Extract the archive's top folder `folder` into `root`; return its path.

    Everything goes to a temporary folder first, which takes its name when all is written, so a
    folder that is there is whole. It gets a list of the checksums of its files. Members that
    would land outside, links and devices are refused.

    Parameters
    ----------
    archive : path of a .zip or .tar(.gz) file
    root : path
        Where the folder shall be.
    folder : str
        Name of the top folder that the archive holds.
    """
    with writing(folder, root):
        root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=root))
    try:
        with writing(folder, root):
            try:
                sums = {str(name): _write(scratch / name, file) for name, file in _members(archive)}
            except _DAMAGED as error:
                raise DataError(
                    f"{archive} is damaged: {error}; delete it and fetch it again"
                ) from error
        if not (scratch / folder).is_dir():
            raise DataError(f"{archive} has no folder {folder}; it is not the archive expected")
        with writing(folder, root):
            top = f"{folder}/"
            inside = {k.removeprefix(top): v for k, v in sums.items() if k.startswith(top)}
            write_sums(scratch / folder, inside)
            return (scratch / folder).rename(root / folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(path: Path, source: IO[bytes]) -> str:
    """Write a file and return its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as out:
        while chunk := source.read(1 << 20):
            out.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Regular files of the archive with their checked names, opened one at a time."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as pack:
            for entry in pack.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if entry.is_dir():
                    _inside(entry.filename, archive)
                elif kind not in (0, stat.S_IFREG):
                    raise _refused(archive, entry.filename, "is a link or a device")
                else:
                    with pack.open(entry) as file:
                        yield _inside(entry.filename, archive), file
    else:
        with tarfile.open(archive) as pack:
            for member in pack:
                name = _inside(member.name, archive)
                if member.isdir():
                    continue
                file_or_none = pack.extractfile(member) if member.isreg() else None
                if file_or_none is None:
                    raise _refused(archive, member.name, "is a link or a device")
                with file_or_none as file:
                    yield name, file
            # gzip checks its sum at the very end, past the last member.
            while pack.fileobj and pack.fileobj.read(1 << 20):
                pass


def _inside(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _refused(archive, name, "would be written outside the data folder")
    return path


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(f"{archive} is not safe to unpack: its member {name!r} {why}; delete it")
