"""The names that other people's code relies on: they are few, and they stay."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tokenphormer
from tokenphormer import Graph, sample_walks

# A name here is a promise: adding one is a line, removing one breaks somebody.
PUBLIC = [
    "DatasetMissingError",
    "Graph",
    "InputError",
    "ResourceError",
    "Split",
    "TokenphormerClassifier",
    "TokenphormerError",
    "__version__",
    "load_graph",
    "make_split",
    "sample_walks",
]


def test_the_public_names_are_these() -> None:
    assert sorted(tokenphormer.__all__) == sorted(PUBLIC)
    assert sorted(dir(tokenphormer)) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there(name: str) -> None:
    found = getattr(tokenphormer, name)
    if name != "__version__":
        assert found.__name__ == name
        assert found.__doc__


def test_star_import_gives_them_all() -> None:
    code = "from tokenphormer import *; print(sorted(set(dir()) - {'__builtins__'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names = set(ast.literal_eval(done.stdout))
    assert set(PUBLIC) <= names
    assert all(name.startswith("__") for name in names - set(PUBLIC))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'tokenphormer' has no attribute 'sample_walk'"):
        tokenphormer.sample_walk  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'sample_walk'"):
        from tokenphormer import sample_walk  # noqa: F401


def test_type_checkers_see_what_is_looked_up() -> None:
    """Names are found twice in `__init__.py`, once for type checkers and once at run time: in the same places."""
    tree = ast.parse(Path(tokenphormer.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: str(node.module).removeprefix("tokenphormer.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tokenphormer.")
        for alias in node.names
    }
    assert seen == tokenphormer._HOME
    assert {*seen, "__version__"} == set(PUBLIC)


def arguments(function: object) -> list[tuple[str, object]]:
    """Names and defaults of the arguments that may be given by position."""
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def test_arguments_of_sample_walks() -> None:
    required = inspect.Parameter.empty
    assert arguments(sample_walks)[:8] == [
        ("graph", required),
        ("kind", required),
        ("num_walks", 10),
        ("length", 4),
        ("nodes", None),
        ("jump_radius", 3),
        ("seed", 0),
        ("device", "cpu"),
    ]


def test_arguments_of_from_edges() -> None:
    assert arguments(Graph.from_edges)[:6] == [
        ("edge_index", inspect.Parameter.empty),
        ("num_nodes", None),
        ("x", None),
        ("y", None),
        ("edge_weight", None),
        ("directed", False),
    ]


def test_arguments_of_load_graph() -> None:
    assert arguments(tokenphormer.load_graph) == [("source", inspect.Parameter.empty)]


def test_the_version_is_that_of_the_installation() -> None:
    from importlib.metadata import version

    assert tokenphormer.__version__ == version("tokenphormer")


def test_a_type_checker_finds_names_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "tokenphormer").mkdir()
    for name in ("__init__.py", "py.typed"):  # alone: what it imports need not be read for this
        (tmp_path / "tokenphormer" / name).write_bytes((Path(tokenphormer.__file__).parent / name).read_bytes())
    (tmp_path / "user.py").write_text("import tokenphormer as tp\n\ntp.load_graph\ntp.load_grap\n", encoding="utf-8")
    options = ["--ignore-missing-imports", "--no-site-packages", "--cache-dir", os.devnull]
    command = [sys.executable, "-m", "mypy", *options, "user.py"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = [line for line in answer.stdout.splitlines() if line.startswith("user.py")]
    assert len(found) == 1, answer.stdout + answer.stderr
    assert found[0].startswith('user.py:4: error: Module has no attribute "load_grap"')
