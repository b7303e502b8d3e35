"""`python -m gradproj`: the same as the command `gradproj`."""

import sys

from gradproj.experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
