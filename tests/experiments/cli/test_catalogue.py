"""`gradproj list` reads the sources; it must say the same as the imported objects."""

import inspect
import subprocess
import sys

import pytest

from gradproj.experiments import methods, networks
from gradproj.experiments.cli import catalogue
from gradproj.experiments.streams.benchmarks import BENCHMARKS


def paragraphs(learner):
    return (inspect.getdoc(learner) or "").split("\n\n")


def test_the_catalogue_equals_the_imported_objects():
    assert catalogue.benchmarks() == {
        name: catalogue.Source(each.kind, each.dataset, each.options)
        for name, each in BENCHMARKS.items()
    }
    assert catalogue.networks() == list(networks.NETWORKS)
    expected = [
        catalogue.Entry(
            name=name,
            scenarios=learner.scenarios,
            summary=paragraphs(learner)[0],
            about=tuple(" ".join(each.split()) for each in paragraphs(learner)[1:]),
            options=tuple(learner.Options.__dataclass_fields__),
        )
        for name, learner in methods.available().items()
    ]
    assert catalogue.methods() == expected


LOADED = """
import contextlib, io, sys
from gradproj.experiments.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        (["--help"], set()),
        (["list"], set()),
        (["list", "presets"], set()),
        (["list", "split-digits"], set()),
    ],
)
def test_quick_commands_load_no_slow_package(command, allowed):
    """Time is not measured: torch alone takes longer than the second that `list` may take."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    slow = {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "PIL", "ray", "rich"}
    assert loaded & slow <= allowed
