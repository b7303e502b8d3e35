"""The package as a whole: public names, what is imported, what is listed."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import gradproj as gp
from gradproj import _public

ROOT = Path(__file__).parent.parent


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_all_is_what_is_public():
    public = {
        name
        for name, value in vars(_public).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert sorted(public) == sorted(gp.__all__)
    assert {name for name in dir(gp) if not name.startswith("__")} == public


def test_importing_it_loads_nothing_until_a_name_is_used():
    code = (
        "import sys, gradproj; early = 'numpy' in sys.modules; from gradproj import *;"
        "sys.exit(early or project is not gradproj.project or 'numpy' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_not_an_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'projekt'"):
        gp.projekt  # noqa: B018


def test_version():
    assert gp.__version__ == version("gradproj")


@pytest.mark.parametrize("name", gp.__all__)
def test_every_public_name_is_documented_with_an_example(name):
    doc = inspect.getdoc(getattr(gp, name))
    assert doc
    assert ">>> " in doc


@pytest.mark.parametrize(
    "name",
    ["project", "project_layers", "solve", "decompose", "gram_schmidt", "principal_components",
     "measure", "combine", "kkt_residuals", "Decomposed", "GEM", "AGEM", "SGEM", "Method"],
)  # fmt: skip
def test_documentation_opens_with_the_problem(name):
    paragraphs = inspect.getdoc(getattr(gp, name)).split("\n\n")
    assert paragraphs[1].startswith(".. math::")


@pytest.mark.parametrize("framework", ["torch", "cupy", "jax", "array_api_strict", "matplotlib"])
def test_importing_and_using_the_core_imports_no_framework(framework):
    code = (
        "import sys, numpy as np, gradproj as gp;"
        "gp.project(np.ones(3), -np.ones((2, 3)), gp.GEM());"
        f"sys.exit('{framework}' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LIBRARIES = ["transformers", "accelerate", "lightning", "avalanche"]


def test_the_torch_adapter_imports_no_training_library():
    pytest.importorskip("torch", reason="torch is not installed")
    code = f"import sys, gradproj.adapters.torch; sys.exit(bool(sys.modules.keys() & {LIBRARIES}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("library", ["transformers", "lightning", "avalanche"])
def test_a_missing_training_library_is_named_with_its_extra(library):
    pytest.importorskip("torch", reason="torch is not installed")
    code = f"import sys; sys.modules[{library!r}] = None; import gradproj.adapters.{library}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    message = f"gradproj.adapters.{library} needs {library}: pip install gradproj[{library}]"
    assert message in done.stderr


def test_every_folder_of_the_package_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    found = set()
    for folder in ("gradproj", "adapters", "experiments"):
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if folder == "gradproj" else ("gradproj", *parts)))
    assert found == listed


def calls_of_namespace(path: Path) -> set[tuple[str, ...]]:
    """Return the names that a file reads from `xp`: ("sum",), ("linalg", "svd"), …"""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        chain = []
        while isinstance(node, ast.Attribute):
            chain.append(node.attr)
            node = node.value
        if chain and isinstance(node, ast.Name) and node.id == "xp":
            found.add(tuple(reversed(chain)))
    return found


# In a process of its own: this one may have imported the stand-in of tests/support.
WITHOUT = """
import json, sys
try:
    import array_api_compat.cupy as xp
except ImportError:
    sys.exit("no CuPy")
missing = []
for chain in json.load(sys.stdin):
    place = xp
    for name in chain:
        if not hasattr(place, name):
            missing.append(".".join(chain))
            break
        place = getattr(place, name)
        if name in ("float32", "float64"):
            break
json.dump(missing, sys.stdout)
"""


def test_cupy_has_every_function_that_the_core_calls():
    needed = set().union(*(calls_of_namespace(path) for path in modules("gradproj")))
    assert ("linalg", "svd") in needed
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=json.dumps(sorted(needed - {("__name__",)})),
        capture_output=True,
        text=True,
        check=False,
    )
    if found.stderr == "no CuPy\n":
        pytest.skip("CuPy is not installed")
    assert json.loads(found.stdout) == []
