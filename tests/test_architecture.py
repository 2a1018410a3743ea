"""The shape of the package: imports run in one direction, light stays light, and nothing runs code from data."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenphormer

ROOT = Path(tokenphormer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A module or package imports only what stands above it here; a new one has to be given its place.
ORDER = [
    "errors",
    "hashing",
    "files",
    "tensor_files",
    "settings",
    "signals",
    "threads",
    "distributed",
    "graph",
    "walks",
    "hops",
    "tokens",
    "model_kernels",
    "model",
    "sgpm",
    "baselines",
    "training",
    "explain",
    "classifier",
    "evaluation",
    "benchmark",
    "studies",
    "tuning",
    "serve",
    "cli",
]
BASE = {"errors", "hashing", "files", "tensor_files", "settings", "signals", "threads", "distributed"}
# These stand side by side in the design, not in a row.
ONLY = {"walks": {"graph"}, "hops": {"graph"}}
EXEMPT = {"__init__.py", "__main__.py"}

HEAVY = ("torch", "torch_geometric", "pandas", "matplotlib", "sklearn", "pyarrow", "networkx")
PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
RUNNING = {"eval", "exec", "__import__"}
UNSAFE = {"torch.load", "torch.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


def unit_of(path: Path) -> str:
    """The top-level module or package that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of all that is imported anywhere in a file of `package`, under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            name = node.args[0]
            yield name.value if isinstance(name, ast.Constant) else "?"


def imported_units(source: str, package: str) -> set[str]:
    """The parts of tokenphormer that a source imports; a public name counts as the part it comes from."""
    units = set()
    for name in imported_modules(ast.parse(source), package):
        first, *rest = name.split(".")
        if first == "tokenphormer" and rest != ["__version__"]:
            part = rest[0] if rest else "tokenphormer"
            units.add(tokenphormer._HOME.get(part, part).split(".")[0])
    return units


def wrong_imports(unit: str, units: set[str]) -> set[str]:
    allowed = set(ORDER[: ORDER.index(unit)]) if unit not in ONLY else BASE | ONLY[unit]
    return units - allowed - {unit}


def dotted(node: ast.AST) -> str:
    """`torch.load` of the expression `torch.load`; empty for anything that is not names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def dangers(source: str) -> list[str]:
    """What in a source could run code that a file or a user brings along."""
    tree = ast.parse(source)
    found = [name for name in imported_modules(tree, "tokenphormer") if name.split(".")[0] in PICKLING]
    found += [name for name in imported_modules(tree, "tokenphormer") if name in UNSAFE]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            found += [called] if called in RUNNING | UNSAFE else []
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else "?"
                if keyword.arg == "allow_pickle" and value is not False:
                    found.append(f"allow_pickle={value}")
    return found


# ---------------------------------------------------------------- one direction


def test_every_part_has_its_place() -> None:
    parts = {unit_of(path) for path in FILES if path.relative_to(ROOT).name not in EXEMPT or path.parent != ROOT}
    assert parts - set(ORDER) == set(), "give the new part its place in ORDER"
    assert set(ORDER) > set(ONLY) | BASE
    assert {"errors", "graph", "walks", "cli"} <= parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_in_one_direction(path: Path) -> None:
    if path.parent == ROOT and path.name in EXEMPT:
        return
    package = ".".join(["tokenphormer", *path.relative_to(ROOT).parent.parts])
    units = imported_units(path.read_text(encoding="utf-8"), package)
    assert wrong_imports(unit_of(path), units) == set()


@pytest.mark.parametrize(
    ("unit", "source", "wrong"),
    [
        ("graph", "import tokenphormer.walks.sampling", {"walks"}),
        ("graph", "from tokenphormer import walks", {"walks"}),
        ("graph", "from tokenphormer import sample_walks", {"walks"}),
        ("graph", "from ..walks import sample_walks", {"walks"}),
        ("graph", "from .. import walks", {"walks"}),
        ("graph", "from . import splits\nfrom .splits import Split\nfrom ..errors import InputError", set()),
        ("graph", "if TYPE_CHECKING:\n    from tokenphormer.model import Tokenphormer", {"model"}),
        ("graph", "def f():\n    import_module('tokenphormer.cli')", {"cli"}),
        ("graph", "import tokenphormer", {"tokenphormer"}),
        ("graph", "from tokenphormer import __version__\nimport numpy.typing", set()),
        ("files", "import tokenphormer.graph", {"graph"}),
        ("hops", "from tokenphormer.walks import KINDS", {"walks"}),
        ("walks", "from tokenphormer.graph import Graph\nfrom tokenphormer.hashing import mix64", set()),
        ("tokens", "from tokenphormer import hops, walks, model, sgpm", {"model", "sgpm"}),
        ("training", "from tokenphormer.evaluation.metrics import Metrics", {"evaluation"}),
    ],
)
def test_the_rule_itself(unit: str, source: str, wrong: set[str]) -> None:
    assert wrong_imports(unit, imported_units(source, f"tokenphormer.{unit}")) == wrong


def test_no_module_is_called_utils() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(ROOT).parts}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


# ---------------------------------------------------------------- light imports


@pytest.mark.parametrize("module", ["tokenphormer", "tokenphormer.graph", "tokenphormer.walks", "tokenphormer.cli"])
def test_imports_stay_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


# ---------------------------------------------------------------- no code from data


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle.loads"]),
        ("def f():\n    import joblib.memory", ["joblib.memory"]),
        ("import_module('pickle')", ["pickle"]),
        ("np.load(path, allow_pickle=True)", ["allow_pickle=True"]),
        ("np.load(path, allow_pickle=trusted)", ["allow_pickle=?"]),
        ("np.load(path, allow_pickle=False)", []),
        ("torch.load(path, weights_only=True)", ["torch.load"]),
        ("from torch import load", ["torch.load"]),
        ("yaml.load(text, Loader)\nyaml.safe_load(text)", ["yaml.load"]),
        ("eval(text)\nexec(text)", ["eval", "exec"]),
        ("model.eval()", []),
    ],
)
def test_the_scan_itself(source: str, found: list[str]) -> None:
    assert dangers(source) == found
