"""Which part of the package may import which: read from the source, nothing is imported.

Imports inside functions and under TYPE_CHECKING count like all others. `EXCEPTIONS` lists the
imports that break a rule today. The list may only become shorter: an entry that is no longer
needed fails the test too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("gradproj", "adapters", "experiments")

# From the lowest to the highest; packages in one row do not import each other.
ORDER = (
    ("common",),
    ("data", "networks"),
    ("streams",),
    ("methods",),
    ("runs",),
    ("inspection",),
    ("reports",),
    ("cli",),
)
RANKS = {package: rank for rank, row in enumerate(ORDER) for package in row}

# Packages that a function may import: those that take long to load or that may not be installed.
EXPENSIVE = (
    "matplotlib",
    "ray",
    "torch.utils.tensorboard",
    "PIL",
    "sklearn",
    "cupy",
    # Takes 0.2 s, and is not part of every build of torch.
    "torch.distributed.tensor",
    # For `gradproj.__version__`, which is rarely asked for.
    "importlib.metadata",
)

# It finds the methods by looking, which imports every module of its package.
REGISTRY = "gradproj.experiments.methods.registry"

EXCEPTIONS: dict[str, set[str]] = {
    "cycles": {
        "_method",
        "_reduction",
    },
}


@dataclass(frozen=True)
class Import:
    """An import of a module, or of a name from it; `function` is "" at the top of a file."""

    importer: str
    imported: str
    name: str = ""
    function: str = ""


def find_modules() -> dict[str, Path]:
    """Map the full name of each module to its file."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if folder == "gradproj" else ("gradproj", *parts)
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = find_modules()


def imports_of(module: str) -> Iterator[Import]:
    """All imports in a file, those of other packages included."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))

    def walk(node: ast.AST, function: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, function=function)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}: write the import in full"
                for alias in child.names:
                    path = f"{child.module}.{alias.name}"
                    if path in MODULES:
                        yield Import(module, path, function=function)
                    else:
                        yield Import(module, child.module or "", alias.name, function)
            inner = (ast.FunctionDef, ast.AsyncFunctionDef)
            yield from walk(child, child.name if isinstance(child, inner) else function)

    return walk(tree, "")


ALL = [found for module in MODULES for found in imports_of(module)]
OWN = [found for found in ALL if found.imported in MODULES]


def short(module: str) -> str:
    return module.removeprefix("gradproj.")


def edge(found: Import) -> str:
    return f"{short(found.importer)} → {short(found.imported)}"


def part(module: str) -> str:
    """Name the part of the distribution: "core", "adapters.torch", "experiments", …"""
    names = module.split(".")[1:]
    if names[:1] == ["adapters"]:
        return ".".join(names[:2])
    if names == ["__main__"]:  # The entry point, above everything.
        return "__main__"
    return "experiments" if names[:1] == ["experiments"] else "core"


def package(module: str) -> str:
    """Name the unit that keeps its private names to itself; inside experiments, its package."""
    if part(module) != "experiments":
        return part(module)
    names = module.split(".")[2:]
    # The facade is above all packages, and none of them imports it.
    if not names:
        return "experiments"
    return names[0]


def wrong_direction() -> set[str]:
    """Core below the adapter of torch, that below other adapters and experiments; no framework."""
    below = {"core": {"core"}, "adapters": {"adapters"}}
    below["adapters.torch"] = {"core", "adapters.torch"}
    below["__main__"] = {"experiments"}
    frameworks = ("torch", "cupy", "jax")
    wrong = {
        edge(found)
        for found in ALL
        if part(found.importer) == "core" and found.imported.split(".")[0] in frameworks
    }
    for found in OWN:
        mine, other = part(found.importer), part(found.imported)
        allowed = below.get(mine, {"core", "adapters.torch", mine})
        # Importing a package imports `gradproj.adapters` too, which holds nothing.
        if other not in allowed:
            wrong.add(edge(found))
    return wrong


def upward() -> set[str]:
    """Inside experiments, an import points strictly down or stays inside its package."""
    wrong = set()
    for found in OWN:
        if part(found.importer) == part(found.imported) == "experiments":
            mine, other = package(found.importer), package(found.imported)
            if mine != other and mine in RANKS and not RANKS[mine] > RANKS.get(other, len(ORDER)):
                wrong.add(edge(found))
    return wrong


def in_cycles() -> set[str]:
    """Find the modules that import themselves by way of others."""
    direct: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OWN:
        # An import runs the packages above the module as well, unless they are being imported.
        names = found.imported.split(".")
        above = {".".join(names[: i + 1]) for i in range(len(names))}
        own = {m for m in above if f"{found.importer}.".startswith(f"{m}.")}
        direct[found.importer] |= above - own | {found.imported} - {found.importer}
    methods = "gradproj.experiments.methods."
    direct[REGISTRY] |= {m for m in MODULES if m.startswith(methods)} - {REGISTRY}
    reachable: dict[str, set[str]] = {}
    for start in MODULES:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = direct[waiting.pop()] - seen
            seen |= new
            waiting += new
        reachable[start] = seen
    return {short(module) for module in MODULES if module in reachable[module]}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private() -> set[str]:
    """Find private modules and names that another package imports or reads from a module."""
    wrong = set()
    for found in OWN:
        if package(found.importer) != package(found.imported):
            names = [*found.imported.split("."), found.name]
            if any(is_private(name) for name in names):
                wrong.add(f"{edge(found)} {found.name}".rstrip())
    for module, path in MODULES.items():
        modules = {
            found.imported.rpartition(".")[2]: found.imported
            for found in OWN
            if found.importer == module and not found.name
        }
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and is_private(node.attr)
                and isinstance(node.value, ast.Name)
                and node.value.id in modules
                and package(modules[node.value.id]) != package(module)
            ):
                wrong.add(f"{short(module)} → {short(modules[node.value.id])} {node.attr}")
    return wrong


def inside_functions() -> set[str]:
    """Imports inside functions, but for what is expensive."""
    return {
        f"{edge(found)} in {found.function}"
        for found in ALL
        if found.function
        and not any(f"{found.imported}.".startswith(f"{name}.") for name in EXPENSIVE)
    }


def homeless() -> set[str]:
    """Modules of experiments that are in none of its packages."""
    return {
        short(module)
        for module in MODULES
        if part(module) == "experiments"
        and package(module) not in RANKS
        and module != "gradproj.experiments"
    }


RULES: dict[str, Callable[[], set[str]]] = {
    "direction": wrong_direction,
    "order": upward,
    "cycles": in_cycles,
    "private": private,
    "functions": inside_functions,
    "home": homeless,
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule):
    found, listed = RULES[rule](), EXCEPTIONS.get(rule, set())
    assert not found - listed, f"new: {RULES[rule].__doc__}"
    assert not listed - found, "no longer needed: remove these entries from EXCEPTIONS"
