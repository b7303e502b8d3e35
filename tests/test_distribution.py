"""The built distributions: complete files, and types in every kind of installation."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# In a process of its own, because setuptools changes the working directory and sys.argv.
BUILD = """
import sys
from setuptools import build_meta
kind, out = sys.argv[1:]
if kind == "editable":
    print(build_meta.build_editable(out, {"editable_mode": "strict"}))
else:
    print(getattr(build_meta, f"build_{kind}")(out))
"""


def tracked() -> set[str]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a clone of the repository")
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tracked files, so that building leaves nothing in the repository."""
    copy = tmp_path_factory.mktemp("source")
    for name in tracked():
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
    return copy


def build(kind: str, source: Path, out: Path) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    command = [sys.executable, "-c", BUILD, kind, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def test_the_source_distribution_contains_the_tests_and_all_that_they_read(source, tmp_path):
    with tarfile.open(build("sdist", source, tmp_path)) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("gradproj/", "adapters/", "experiments/", "tests/", "examples/", "docs/")
    expected = {name for name in tracked() if name.startswith(folders)}
    assert expected <= found
    assert {"Makefile", "tox.ini", "pyproject.toml", "CHANGELOG.md", "README.md"} <= found
    assert not [name for name in found if "__pycache__" in name]


def test_the_wheel_contains_every_module_and_data_file_and_no_tests(source, tmp_path):
    with zipfile.ZipFile(build("wheel", source, tmp_path)) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = set()
    for name in tracked():
        if name.startswith(("adapters/", "experiments/")):
            expected.add(f"gradproj/{name}")
        elif name.startswith("gradproj/"):
            expected.add(name)
    assert found == expected
    assert "gradproj/py.typed" in found


USER = """
import gradproj as gp
from gradproj.experiments.common.errors import ConfigError
gp.Decomposed(rank="many")
ConfigError(1).no_such_attribute
"""


def test_an_editable_installation_keeps_its_types(source, tmp_path):
    """In strict mode; type checkers do not follow the import hooks of the default mode."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    with zipfile.ZipFile(build("editable", source, tmp_path)) as archive:
        (link,) = (name for name in archive.namelist() if name.endswith(".pth"))
        folder = Path(archive.read(link).decode().strip())
    user = tmp_path / "user"
    user.mkdir()
    (user / "use.py").write_text(USER)
    # A type checker finds the folder through the .pth file; here the path stands for it.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "use.py"],
        cwd=user, env={"MYPYPATH": str(folder), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    codes = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if ": error: " in line]
    assert codes == ["[arg-type]", "[attr-defined]"], done.stdout + done.stderr
