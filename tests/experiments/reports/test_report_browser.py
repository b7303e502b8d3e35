"""The page in a real browser: it fits, it is readable in the dark, and it loads nothing."""

import html
import json
import re
import shutil
import subprocess

import pytest
from PIL import Image
from support.runs import matrix, write_run

from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.render.page import render_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# The measurements are written into the title of the page, which the browser prints.
PROBE = """
<script>
const style = getComputedStyle(document.body);
const wide = document.querySelector(".wide");
document.title = JSON.stringify([document.documentElement.scrollWidth <= innerWidth,
  wide.scrollWidth > wide.clientWidth, style.color, style.backgroundColor,
  getComputedStyle(document.querySelector("figure svg")).color]);
</script>
"""


def browse(page, profile, *flags):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--user-data-dir={profile}", *flags, page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def luminance(colour):
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for seed, last in enumerate((0.82, 0.83)):
        write_run(folder / "runs", "mnist-permutations/ours", seed, matrix(last))
    text = render_page(build(collect([folder / "runs"]), {}))
    (folder / "report.html").write_text(text)
    (folder / "probed.html").write_text(text.replace("</body>", PROBE + "</body>"))
    return folder


@pytest.mark.parametrize(("scheme", "dark"), [("1", False), ("0", True)])
def test_a_narrow_window_scrolls_tables_only_and_ink_stands_out(page, tmp_path, scheme, dark):
    flags = ("--window-size=700,900", f"--blink-settings=preferredColorScheme={scheme}")
    dom = browse(page / "probed.html", tmp_path, "--dump-dom", *flags)
    title = html.unescape(re.search("<title>(.*?)</title>", dom)[1])
    fits, scrolls, ink, paper, figure = json.loads(title)
    assert (fits, scrolls) == (True, True)
    light, low = sorted((luminance(ink), luminance(paper)), reverse=True)
    assert (light + 0.05) / (low + 0.05) > 7
    assert (luminance(paper) < 0.1) is dark
    assert figure == ink


def test_the_page_is_drawn(page, tmp_path):
    shot = tmp_path / "shot.png"
    browse(page / "report.html", tmp_path / "profile", f"--screenshot={shot}",
           "--window-size=1200,1600")  # fmt: skip
    with Image.open(shot) as image:
        assert image.width == 1200
        assert len(image.convert("RGB").getcolors(1 << 24)) > 100


SORT = """
<script>
const table = [...document.querySelectorAll("table")].find((t) =>
  t.tHead.rows[0].cells[0].textContent === "method" && t.textContent.includes("no run"));
const heads = [...table.tHead.rows[0].cells];
const column = heads.findIndex((head) => head.textContent === "paper ACC");
const shown = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent.trim());
const seen = [];
for (const _ of [1, 2]) {
  heads[column].querySelector("button").click();
  seen.push([heads[column].getAttribute("aria-sort"), shown()]);
}
document.title = JSON.stringify(seen);
</script>
"""


def test_pressing_a_heading_sorts_by_its_numbers(page, tmp_path):
    text = (page / "report.html").read_text().replace("</body>", SORT + "</body>")
    (page / "sorted.html").write_text(text)
    dom = browse(page / "sorted.html", tmp_path, "--dump-dom")
    up, down = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom)[1]))
    assert (up[0], down[0]) == ("ascending", "descending")
    numbers = [float(cell.split()[0]) for cell in up[1]]
    assert len(set(numbers)) > 3
    assert numbers == sorted(numbers)
    assert [float(cell.split()[0]) for cell in down[1]] == sorted(numbers, reverse=True)
