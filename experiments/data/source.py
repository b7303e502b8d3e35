"""Downloadable data sets, and the steps from the publisher to a Dataset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from gradproj.experiments.common.errors import DataError
from gradproj.experiments.data.archive import extract
from gradproj.experiments.data.dataset import Dataset
from gradproj.experiments.data.download import Download, download
from gradproj.experiments.data.files import writing

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """A data set that lives as files in the data folder.

    Attributes
    ----------
    name : str
        Name by which users ask for it.
    about : str
        One line: what it holds, and its terms.
    folder : str
        Where its files are, below the data folder.
    files : mapping
        Files that must be there (each may be gzipped), with their sha256, or "" if none is known.
    downloads : tuple of Download
    archive : bool
        Whether the download is an archive that holds `folder`; else it is files for that folder.
    read : callable
        (source, data folder) → Dataset; raises DataError for damaged files.
    instead : str
        Another folder that `read` takes when the first is not there.
    """

    name: str
    about: str
    folder: str
    files: Mapping[str, str]
    downloads: tuple[Download, ...]
    archive: bool
    read: Callable[["Source", Path], Dataset]
    instead: str = ""

    def missing(self, root: Path) -> list[str]:
        """Files that are not in the data folder."""
        if self.instead and not (root / self.folder).exists() and (root / self.instead).is_dir():
            return []
        paths = [root / self.folder / name for name in self.files]
        return [p.name for p in paths if not (p.exists() or p.with_name(p.name + ".gz").exists())]

    def fetch(self, root: Path) -> None:
        """Download what is missing; several processes may ask at once, one does the work."""
        with writing(self.name, root):
            root.mkdir(parents=True, exist_ok=True)
            lock = FileLock(root / f".{self.name}.lock")
            lock.acquire()
        try:
            if self.missing(root):
                if self.archive and (root / self.folder).exists():
                    raise DataError(
                        f"{root / self.folder} is there but not complete; delete the folder and "
                        "fetch it again"
                    )
                for item in self.downloads:
                    if self.archive:
                        extract(download(item, root), root, self.folder)
                    else:
                        download(item, root / self.folder)
        finally:
            lock.release()

    def load(self, root: Path, download: bool = True) -> Dataset:
        """Read the data set, after fetching it if it is not there and `download` allows."""
        if self.missing(root) and download:
            self.fetch(root)
        if absent := self.missing(root):
            raise DataError(
                f"{self.name} is not in {root}: {self.folder} lacks {', '.join(absent)}; run "
                f"`gradproj data fetch {self.name}`, or name the folder that has it with "
                "--data-dir or GRADPROJ_DATA"
            )
        return self.read(self, root)
