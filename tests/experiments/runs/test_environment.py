"""The environment that a run records, above all the commit of its own code."""

import json
import subprocess

import pytest

from gradproj.experiments.runs import environment
from gradproj.experiments.runs.environment import describe_environment


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder in no checkout that the code seems to run from."""
    code = tmp_path / "environment.py"
    code.touch()
    monkeypatch.setattr(environment, "__file__", str(code))
    return tmp_path


def install(folder, monkeypatch, noted):
    """Let an installer have put the package there and noted this of where it came from."""
    info = folder / "gradproj-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: gradproj\nVersion: 9.9\n")
    (info / "direct_url.json").write_text(noted)
    monkeypatch.syspath_prepend(folder)


def test_a_commit_is_that_of_the_code_and_not_of_the_project_around_it(elsewhere):
    git = ["git", "-C", str(elsewhere), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert describe_environment()["commit"] == ""
    subprocess.run([*git, "add", "environment.py"], check=True)
    assert len(describe_environment()["commit"]) == 40


def test_a_package_installed_from_git_knows_its_commit(elsewhere, monkeypatch):
    commit = "0123456789" * 4
    origin = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": commit}}
    install(elsewhere, monkeypatch, json.dumps(origin))
    found = describe_environment()
    assert (found["versions"]["gradproj"], found["commit"]) == ("9.9", commit)


@pytest.mark.parametrize("noted", ["", "{", "[]", '{"url": "file:///x", "dir_info": {}}'])
def test_a_package_installed_otherwise_has_no_commit(elsewhere, monkeypatch, noted):
    install(elsewhere, monkeypatch, noted)
    found = describe_environment()
    assert (found["versions"]["gradproj"], found["commit"]) == ("9.9", "")
