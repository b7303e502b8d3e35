"""The documentation site without Sphinx: names, links and programs. `make docs` builds it."""

import importlib
import re
import runpy
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Pages that Sphinx reads, without those that it generates.
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
)
TEXTS = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "results").rglob("*.md"))]
NAMED = [path.relative_to(ROOT).as_posix() for path in PAGES]


def blocks(path: Path, info: str) -> list[str]:
    """Return the code blocks of a page that start with this info string."""
    return re.findall(rf"```{info}\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def listed(page: str) -> set[str]:
    """Return the names in the tables of an API page."""
    return set(re.findall(r"^   ([A-Za-z]\w*)$", (DOCS / page).read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("gradproj", "api/core.md"),
        ("gradproj.adapters.torch", "api/torch.md"),
        ("gradproj.experiments", "api/experiments.md"),
    ],
)
def test_every_public_name_is_in_the_api_reference(module, page):
    if module != "gradproj":
        pytest.importorskip("torch", reason="torch is not installed")
    assert listed(page) == set(importlib.import_module(module).__all__) - {"__version__"}


def test_every_page_is_in_the_table_of_contents():
    toctrees = {
        path: "\n".join(blocks(path, r"\{toctree\}")).splitlines()
        for path in PAGES
        if "{toctree}" in path.read_text(encoding="utf-8")
    }
    named = {path.parent / f"{entry}.md" for path, lines in toctrees.items() for entry in lines}
    assert set(PAGES) - {DOCS / "index.md"} <= named


def test_every_result_that_the_site_links_to_has_a_page():
    included = re.compile(r"\{include\} (\S+)")
    pages = {
        (path.parent / found).resolve()
        for path in (DOCS / "results").rglob("*.md")
        for found in included.findall(path.read_text(encoding="utf-8"))
    }
    linked = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text(encoding="utf-8"))
    }
    assert len(linked) >= 6
    assert linked <= pages


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_to_files(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    targets += [f"{ROOT}/{name}" for name in re.findall(r"\{source\}`([^`]+)`", text)]
    missing = [
        target
        for target in targets
        if not re.match(r"https?:|mailto:|#", target)
        # The gallery is generated from files of the same name.
        and not (path.parent / target.split("#")[0]).exists()
        and not (DOCS / "gallery" / Path(target).with_suffix(".py").name).exists()
        and target != "generated/gallery/index.rst"
    ]
    assert not missing


def test_the_check_of_the_built_site_finds_broken_links(tmp_path):
    checker = runpy.run_path(str(DOCS / "check_links.py"))
    (tmp_path / "a.html").write_text(
        '<h1 id="top"><a href="b%20c.html#part">x</a><a href="#top">x</a></h1>'
        '<img src="lost.png"><a href="b%20c.html#lost">x</a><a href="https://example.org">x</a>'
    )
    (tmp_path / "b c.html").write_text('<p id="part"><a href="a.html">x</a></p>')
    assert checker["broken_links"](tmp_path) == [
        "a.html: b%20c.html#lost leads nowhere",
        "a.html: lost.png leads nowhere",
    ]


# Pages about other libraries need these libraries: tests/test_integration_pages.py runs them.
PROGRAMS = [
    name
    for name in NAMED
    if blocks(ROOT / name, "python") and not name.startswith("docs/integrations/")
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_page_print_what_it_says(name, capsys):
    """The blocks of a page share their names, as they would when a reader types them."""
    pytest.importorskip("torch", reason="torch is not installed")
    text = (ROOT / name).read_text(encoding="utf-8")
    names = {}
    for code, output in re.findall(
        r"```python\n(.*?)```(?:\n\n```text output\n(.*?)```)?", text, re.S
    ):
        exec(compile(code, name, "exec"), names)
        printed = capsys.readouterr().out
        assert printed == output


def test_the_commands_inside_texts_can_be_read_and_name_what_exists():
    """Commands in sentences, tables and blocks that no test runs."""
    commands = pytest.importorskip("gradproj.experiments.cli.commands", reason="no experiments")
    from gradproj.experiments.runs.presets import find, match

    # The changelog also names single options, and those of earlier versions.
    files = {*PAGES, *ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}
    texts = [path.read_text(encoding="utf-8") for path in files]
    found = {line for text in texts for line in re.findall(r"`(gradproj [^`…]*)`", text)}
    found |= {
        line
        for path in PAGES
        for block in blocks(path, "text")
        for line in block.splitlines()
        if line.startswith("gradproj ")
    }
    assert len(found) > 15
    for line in found:
        # Some name a command, or its options alone, and not what it is applied to.
        if re.search(r"[A-Z]{3,}|^gradproj( [a-z]+)?$", line):
            continue
        args = commands.parse(shlex.split(line)[1:])
        if args.command == "list":
            assert args.execute(args) == 0, line
        for name in getattr(args, "presets", []):
            assert all(find(preset) for preset in match(name)), line


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in NAMED if blocks(ROOT / name, "sh") and name != "docs/extending.md"]
)
def test_the_commands_of_a_page_work(name, tmp_path, monkeypatch):
    """Every command ends without an error, in the order of the page."""
    cli = pytest.importorskip("gradproj.experiments.cli", reason="experiments are not installed")
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / name, "sh"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "gradproj"
            if arguments != ["demo"]:  # one minute; tests of the command line run it smaller
                assert cli.main(arguments) == 0, line
