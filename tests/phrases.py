"""Check of the project's texts for phrases that its writing style excludes.

    python tests/phrases.py [FILE ...]

Prints file, line, phrase and rule, and exits with 1 if there is a finding. It reads docstrings,
comments and strings of Python files, and the whole text of Markdown, TOML, templates and makefiles.
Without arguments it reads every file that git tracks.

A line that contains ``phrase: allow`` may hold such a phrase, and so may the line after it.
"""

from __future__ import annotations

import bisect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".md", ".toml", ".j2", ".ini", ".cff", ".yml", ".yaml"}
NAMES = {"Makefile"}
ALLOW = "phrase: allow"

# Files that hold code as data, or quote the phrases.
SKIPPED = ("tests/mutants/mutants.toml", "tests/phrases.py", "tests/test_phrases.py")

# What rates are counted by: "one row per task" and never "one row a task".
_UNIT = (
    r"(?:task|step|layer|row|run|class|batch|seed|type|process|epoch|method|benchmark|line|column|"
    r"parameter|tensor|image|sample|pass|second|minute|hour|machine|core|worker|module|file|folder|"
    r"test|backend|device|name|entry|key|group|block|rank|shard|command|cell|table|figure|framework|library|configuration)"
)
_COUNT = (
    r"(?:one|two|three|ten|once|twice|times|samples|images|numbers|passes|steps|rows|lines|seconds|"
    r"minutes|epochs|gradients|threads|calls|values|bytes|megabytes|MB|files|environments?|"
    r"JSON|thread|folder|process|picture|figure|pool|head|entry|curve|panel|package)"
)

RULES = {
    "negate the verb: 'is not a list'": (
        r"(?<!there )(?<!there's )\b(?:is|are|was|were|be) no "
        r"(?!longer\b|more\b|less\b|fewer\b|\w+er than\b)|\b(?:is|are) none\b"
    ),
    "use 'per' for rates: 'one row per task'": (
        rf"\b(?:{_COUNT}|an? \w+) an? {_UNIT}\b(?! (?:is|has|was|that|which|of|needs|\w+ed)\b)"
    ),
    "name the subject": r"\b(?:whoever|nobody|somebody|anybody|everybody)\b",
    "state the number or the condition": r"\bso (?:many|much)\b(?! (?:that|as)\b)",
    "use the word of the field: algorithm, path, step": r"\broads?\b",
    "name the source or the definition": r"\bby the book\b",
    "say what it does or does not do": r"\b(?:of|no) (?:no |any |some )?use\b(?! of\b)",
    "write ranges as '>= 0'": r"\bfrom \d+ on\b",
    "write 'learned'": r"\blearnt\b",
    "write 'resume' or 'continue'": r"\b(?:goes|go|went|going|gone) on\b(?! (?:the|a|an)\b)",
    "name what determines it": r"\btold\b",
    "write 'only', 'except' or 'all of'": r"\b(?:has|have|is|are|all|nothing|none) but\b",
    "write 'again' or 'from scratch'": r"\banew\b",
    "state the number": r"\bby the dozen\b",
    "start with the subject, not with 'what'": r"(?:(?<=^)|(?<=\. ))What (?!is new\b)(?![^.]*\?)",
}
_RULES = {rule: re.compile(pattern, re.IGNORECASE) for rule, pattern in RULES.items()}


class Finding(NamedTuple):
    """A phrase in a file, and the rule that excludes it."""

    line: int
    phrase: str
    rule: str


def paragraphs(text: str, python: bool) -> Iterator[list[tuple[int, str]]]:
    """Yield the paragraphs of a file as lists of (line number, words)."""
    pieces = _python_pieces(text) if python else enumerate(text.splitlines(), 1)
    paragraph: list[tuple[int, str]] = []
    for number, line in pieces:
        words = " ".join(line.strip().removeprefix("# ").split())
        if paragraph and (not words or number > paragraph[-1][0] + 1):
            yield paragraph
            paragraph = []
        if words:
            paragraph.append((number, words))
    if paragraph:
        yield paragraph


def _python_pieces(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line.strip("\"'")


def findings(text: str, python: bool) -> list[Finding]:
    """Return the excluded phrases of a text, in the order of their lines."""
    lines = text.splitlines()
    found = []
    for paragraph in paragraphs(text, python):
        # One string per paragraph, because a phrase may continue on the next line.
        starts, joined = [], ""
        for _, words in paragraph:
            starts.append(len(joined))
            joined += words + " "
        for rule, pattern in _RULES.items():
            for match in pattern.finditer(joined):
                number = paragraph[bisect.bisect_right(starts, match.start()) - 1][0]
                if not any(ALLOW in line for line in lines[max(0, number - 2) : number]):
                    found.append(Finding(number, match.group().strip(), rule))
    return sorted(found)


def tracked_files() -> list[Path]:
    """Return the files of the project to check, as git lists them."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        ROOT / name
        for name in listed
        if (Path(name).suffix in SUFFIXES or Path(name).name in NAMES)
        and not name.startswith(SKIPPED)
        and (ROOT / name).exists()
    ]


def main(arguments: list[str]) -> int:
    """Print the findings in the given files, or in all files of the project."""
    files = [Path(name) for name in arguments] or tracked_files()
    count = 0
    for path in files:
        for finding in findings(path.read_text(encoding="utf-8"), path.suffix == ".py"):
            count += 1
            print(
                f"{path.absolute().relative_to(ROOT)}:{finding.line}: "
                f"{finding.phrase!r}: {finding.rule}"
            )
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
