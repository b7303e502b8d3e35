"""Download one file: mirrors, progress, resuming, checksum, and never half a file in place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.files import file_md5, writing

__all__ = ["Download", "download"]

_CHUNK = 1 << 18
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Download:
    """A file that a publisher offers.

    Attributes
    ----------
    urls : tuple of str
        The same file at one or more addresses, tried in turn.
    md5 : str
        The publisher's checksum of the file.
    """

    urls: tuple[str, ...]
    md5: str

    @property
    def name(self) -> str:
        """The file's name, the last part of its address."""
        return urlsplit(self.urls[0]).path.rpartition("/")[2]


def download(item: Download, folder: Path) -> Path:
    """Put the file into the folder, unless it is there and whole; return its path.

    The transferred bytes are kept in a ``.part`` file beside it, so that an interrupted download
    resumes. The file gets its name only when its checksum is right.
    """
    target = folder / item.name
    if target.exists() and file_md5(target) == item.md5:
        return target
    with writing(item.name, folder):
        folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{item.name}.part"
    failures = []
    for url in item.urls:
        try:
            _transfer(url, part)
        except (_NetworkError, HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        if file_md5(part) == item.md5:
            with writing(item.name, folder):
                part.replace(target)
            return target
        failures.append(f"{url}: its checksum is not the publisher's ({item.md5})")
        part.unlink()
    raise DataError(
        f"cannot download {item.name}:\n  "
        + "\n  ".join(failures)
        + f"\nCheck the connection and try again, or put the file at {target} by hand, or name a "
        "folder that has the data with --data-dir or GRADPROJ_DATA."
    )


class _NetworkError(Exception):
    """The server or the connection to it failed; a disk that cannot be written is an OSError."""


def _transfer(url: str, part: Path) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    with _network():
        try:
            response = cast(HTTPResponse, urlopen(request, timeout=_TIMEOUT))
        except HTTPError as error:
            if error.code != 416 or not done:
                raise
            # Nothing is left to send, so the part is whole, or longer than the file: the
            # checksum decides.
            return
    with response, writing(part.name, part.parent):
        resumed = response.status == 206
        start = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file, _progress(url, start, total) as advance:
            while True:
                with _network():
                    chunk = response.read(_CHUNK)
                if not chunk:
                    break
                file.write(chunk)
                advance(len(chunk))
            size = file.tell()
    if total is not None and size < total:
        raise _NetworkError(f"the connection closed after {size:,} of {total:,} bytes")


@contextmanager
def _network() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _NetworkError(str(getattr(error, "reason", None) or error)) from error


@contextmanager
def _progress(url: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; elsewhere one line."""
    console = Console(stderr=True)
    name, host = url.rpartition("/")[2], urlsplit(url).netloc
    if not console.is_terminal:
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        console.print(f"downloading {name}{size} from {host}", highlight=False)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda count: bar.advance(task, count)
