"""Run folders from unknown sources: nothing is imported, everything is shown as text."""

import copy
import html
import json
import re
import shutil
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.running import QUICK, finish, stop_at

from gradproj.experiments import methods
from gradproj.experiments.common import registry
from gradproj.experiments.common.errors import RunError
from gradproj.experiments.common.files import component, sign
from gradproj.experiments.reports.collect import collect
from gradproj.experiments.reports.content import build
from gradproj.experiments.reports.export import export
from gradproj.experiments.reports.render.markdown import _block, _code, _escape, render
from gradproj.experiments.runs.checkpoint import Checkpoints
from gradproj.experiments.runs.resolve import resolve
from gradproj.experiments.runs.runner import run
from gradproj.experiments.streams import benchmarks

SMALL = {**QUICK, "stream": {"tasks": 2, "samples": 20}}
EVIL = "import pathlib; pathlib.Path(__file__).with_name('was-run').touch()\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(SMALL, folder)
    return folder


@pytest.fixture(autouse=True)
def no_imports(request, monkeypatch):
    """Fail if an object is loaded by its name."""
    if "evil" in request.fixturenames:
        return

    def refuse(*_):
        raise AssertionError("code that a file named was loaded")

    for module in (registry, methods.registry, benchmarks):
        monkeypatch.setattr(module, "load_object", refuse)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module in the working directory that leaves a mark when it is imported."""
    (tmp_path / "evil_module.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "was-run"
    sys.modules.pop("evil_module", None)


@pytest.mark.parametrize("key", ["benchmark", "method", "network"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_configuration_imports_nothing(key, resume, whole, evil, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: "evil_module:thing"}))
    with pytest.raises(RunError, match=rf"another configuration \(differs in {key}\)"):
        run(resolve(SMALL), tmp_path / "run", resume=resume)
    assert not evil.exists()
    (tmp_path / "run" / "result.json").unlink()
    build(collect([tmp_path / "run"]), {})
    assert not evil.exists()


@pytest.mark.parametrize("key", ["benchmark", "method", "network"])
def test_a_checkpoint_imports_nothing(key, evil, tmp_path):
    stop_at(SMALL, tmp_path / "run", 2)
    checkpoints = Checkpoints(tmp_path / "run")
    state, _ = checkpoints.load(lambda _: "")
    state["config"] = json.dumps({**json.loads(state["config"]), key: "evil_module:thing"})
    checkpoints.save(state)
    with pytest.raises(RunError, match="not of this run, but of another configuration"):
        run(resolve(SMALL), tmp_path / "run", resume=True)
    assert not evil.exists()


@given(st.text())
def test_a_name_stays_inside_its_folder(name):
    made = component(name)
    assert made not in ("", ".", "..")
    assert not set(made) & set("/\\\0\n")


@pytest.mark.parametrize("benchmark", ["..", "../..", "/etc", "../../x/y", "."])
def test_a_benchmark_named_like_a_path_is_kept_inside(benchmark, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    change(tmp_path / "run", "config.json", lambda values: {**values, "benchmark": benchmark})
    (path,) = export(collect([tmp_path / "run"]).runs, tmp_path / "a" / "kept")
    assert path.resolve().is_relative_to((tmp_path / "a" / "kept").resolve())


def change(folder, name, edit):
    """Change a file as its owner can: with new checksums."""
    values = edit(json.loads((folder / name).read_text()))
    (folder / name).write_text(json.dumps(values))
    result = json.loads((folder / "result.json").read_text())
    if isinstance(result, dict):
        result = {k: v for k, v in result.items() if k not in ("sha256", "files")}
        (folder / "result.json").write_bytes(sign(result))


SPECIAL = st.text("ab_*`[]()<>|#&!~$\\\n\r-+=1.: @/w\"'\x1b", max_size=20)


@given(SPECIAL)
def test_markdown_shows_text_as_it_is(text):
    shown = _escape(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*|\[\]]", re.sub(r"\\.", "", shown))
    assert not set(shown) & set("<>\x1b")
    assert not re.match(r"[#+=-]|\d+[.)]", _block(text))
    for made in (shown, _block(text)):
        plain = html.unescape(re.sub(r"\\(.)", r"\1", made))
        assert plain == " ".join(text.split()).replace("\x1b", "\ufffd")


@given(SPECIAL)
def test_a_command_does_not_leave_its_code(text):
    shown = _code(f"gradproj {text}")
    fence = re.match("`+", shown)[0]
    inner = shown[len(fence) : -len(fence)]
    assert shown.endswith(fence)
    assert fence not in re.findall("`+", inner)
    assert not re.search(r"(?<!\\)\|", inner)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SPECIAL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SPECIAL, inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["config.json", "result.json", "environment.json"])


@given(NAMES, st.data())
def test_a_malformed_folder_is_shown_or_is_one_line(whole, tmp_path_factory, name, data):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(whole, folder)
    values = json.loads((folder / name).read_text())

    def edit(values):
        values, place = copy.deepcopy(values), values
        key = data.draw(st.sampled_from(sorted(values)))
        if data.draw(st.booleans()) and isinstance(values[key], dict) and values[key]:
            place, key = values[key], data.draw(st.sampled_from(sorted(values[key])))
        else:
            place = values
        place[key] = data.draw(JSON)
        return values

    assert isinstance(values, dict)
    change(folder, name, edit)
    found = collect([folder])
    assert len(found.runs) + len(found.problems) == 1
    assert all(problem.isprintable() for problem in found.problems)
    text = render(build(found, {}), "Report")
    assert "\x1b" not in text
    shutil.rmtree(folder.parent)


ODD = (None, "x", [], {"x": "y"}, [["x"]], 1e300, "\x1b[2J\nx")


@pytest.mark.parametrize("name", ["config.json", "result.json", "environment.json"])
def test_every_key_may_hold_a_value_of_another_kind(name, whole, tmp_path):
    """The test above may need hundreds of cases to find such a value."""
    folder = tmp_path / "run"
    for key in json.loads((whole / name).read_text()):
        for value in ODD:
            shutil.copytree(whole, folder)
            change(folder, name, lambda values, key=key, value=value: {**values, key: value})
            found = collect([folder])
            assert len(found.runs) + len(found.problems) == 1
            # A terminal would obey control characters.
            assert all(problem.isprintable() for problem in found.problems)
            assert "\x1b" not in render(build(found, {}), "Report")
            shutil.rmtree(folder)
