"""The command line `gradproj`, with one module per command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from gradproj.experiments.runs.signals import ended_at_once

__all__ = ["main"]

STOPPED = "gradproj: stopped"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, as the help of the command line lists them."""
    try:
        # Import everything else inside, because Ctrl-C outside would show a traceback.
        with ended_at_once(STOPPED):
            output = import_module(f"{__name__}.output")
            commands = import_module(f"{__name__}.commands")
        with output.steady_output():
            with ended_at_once(STOPPED):
                args = commands.parse(sys.argv[1:] if argv is None else argv)
            return int(args.execute(args))
    except (ValueError, OSError) as error:
        # The message explains wrong input; a traceback would hide it.
        print(f"gradproj: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 130
