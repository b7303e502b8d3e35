"""A disk that forgets: the states in which a power cut may leave the folder of a run."""

import os
from pathlib import Path


class Disk:
    """Watches one folder and tells what could be left of it if the power failed now.

    The content of a file is safe once the file was synced, its name once the folder was. Anything
    later may be lost, or written in part.
    """

    def __init__(self, folder, spare, monkeypatch):
        self.folder, self.spare = Path(folder), Path(spare)
        self.spare.mkdir()
        self.before = lambda: None  # called before each operation
        self._real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "rename")}
        self._hold()
        # Name → file number, as last synced and after each change since: folders keep the order of
        # changes, but may lose the last ones. File number → content, as last synced.
        self.names = [self._now()]
        self.synced = {n: (self.spare / str(n)).read_bytes() for n in self.names[0].values()}
        for name in self._real:
            monkeypatch.setattr(os, name, self._watching(name))

    def _watching(self, name):
        def watched(*args, **kwargs):
            self.before()
            self._hold()
            self.names.append(self._now())
            result = self._real[name](*args, **kwargs)
            if name == "fsync":
                self._sync(args[0])
            return result

        return watched

    def _hold(self):
        """Give every file a second name, so that its number is not used again."""
        for number in self._now().values():
            kept = self.spare / str(number)
            if not kept.exists():
                source = next(p for p in self.folder.iterdir() if p.stat().st_ino == number)
                os.link(source, kept)

    def _now(self):
        if not self.folder.exists():
            return {}
        files = [p for p in self.folder.iterdir() if p.is_file() and p.name != ".lock"]
        return {p.name: p.stat().st_ino for p in files}

    def _sync(self, descriptor):
        self._hold()
        number = os.fstat(descriptor).st_ino
        if self.folder.exists() and number == self.folder.stat().st_ino:
            self.names = [self._now()]
        elif (self.spare / str(number)).exists():
            self.synced[number] = (self.spare / str(number)).read_bytes()

    def states(self, draw):
        """List what may be left: for each, the content of every file by its name.

        `draw` chooses a number up to and including its argument: how many bytes are left.
        """
        self._hold()
        found, now = [], self._now()
        # Some file systems delete later than they rename.
        undeleted = {**self.names[0], **now}
        for names in (*self.names, now, undeleted):
            contents = {}
            for name, number in names.items():
                whole = (self.spare / str(number)).read_bytes()
                safe = self.synced.get(number, b"")
                contents[name] = [safe, whole, whole[: draw(len(whole))]]
                if whole.startswith(safe):  # The safe part stays; the rest may be cut anywhere.
                    contents[name][2] = whole[: len(safe) + draw(len(whole) - len(safe))]
            found += [{name: each[i] for name, each in contents.items()} for i in range(3)]
        return found


def lay_out(state, folder):
    """Write a state to a new folder, as it is found when the power is back."""
    folder.mkdir(parents=True)
    for name, content in state.items():
        (folder / name).write_bytes(content)
