"""Files for publishing: they agree about the version, the address and the checks."""

import configparser
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_has_the_version_and_the_address():
    citation = read("CITATION.cff")
    assert re.findall(r"^version: (.+)$", citation, re.M) == [PROJECT["version"]]
    assert re.findall(r"^repository-code: (.+)$", citation, re.M) == [PROJECT["urls"]["Homepage"]]
    assert re.findall(r"^license: (.+)$", citation, re.M) == [PROJECT["license"]]


def test_the_changelog_begins_with_the_version():
    assert re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.M)[0] == PROJECT["version"]


def test_the_site_links_to_the_same_repository():
    assert f'REPOSITORY = "{PROJECT["urls"]["Homepage"]}"' in read("docs/conf.py")


def test_the_workflow_runs_every_default_environment_of_tox():
    tox = configparser.ConfigParser(interpolation=None)
    tox.read_string(read("tox.ini"))
    environments = []
    for entry in re.split(r",\s*(?![^{]*\})", tox["tox"]["env_list"]):
        factors = re.search(r"\{(.*)\}", entry)
        choices = factors[1].split(",") if factors else [""]
        environments += [re.sub(r"\{.*\}", choice, entry) for choice in choices]
    workflow = read(".github/workflows/checks.yml")
    assert re.findall(r"^          - ([\w-]+)$", workflow, re.M) == environments
