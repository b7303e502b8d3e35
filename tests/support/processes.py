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


# Seconds after which a process counts as hanging. A busy machine may need many minutes for a step
# of a test, so no test depends on how fast a process is.
HANGING = 1800


def wait_for(condition, process=None):
    """Wait until `condition()` is true and return its value; fail at once if `process` ends."""
    end = time.monotonic() + HANGING
    while not (value := condition()):
        # Ask again: the process may have done its work between the two questions.
        if process is not None and process.poll() is not None and not (value := condition()):
            out = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the process ended with exit code {process.returncode}: {out}")
        assert value or time.monotonic() < end, "the process hangs"
        time.sleep(0.05)
    return value
