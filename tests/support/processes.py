"""The processes that this one has started, by way of others too; for tests that kill some."""

import os
import time
from pathlib import Path


def descendants(root=None):
    """Map the number of each process below `root` (this one by default) to its command line."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in brackets, may hold anything; the parent is the second word after it.
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().decode().strip("\0")
        except (OSError, IndexError):  # It has ended just now.
            continue
    found, level = {}, [root or os.getpid()]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found |= {pid: commands[pid] for pid in level if pid in commands}
    return found


def wait_for(condition, seconds=120):
    """Wait until `condition()` is true and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return value
