"""Check of the built site: every link inside it leads to a page, a file or a heading.

    python docs/check_links.py docs/_build/html

Sphinx checks the references that it resolves itself. This also covers links that come from included
Markdown files, docstrings, the gallery and the theme.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the names that a link can lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        """Note the links and names of one element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def broken_links(site: Path) -> list[str]:
    """Return one line per link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(target)
            if known is None:
                found = target.is_file() and not parts.fragment
            else:
                found = unquote(parts.fragment) in known.anchors
            if not found:
                broken.append(f"{path.relative_to(site.resolve())}: {link} leads nowhere")
    return sorted(set(broken))


if __name__ == "__main__":
    lines = broken_links(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(1 if lines else 0)
