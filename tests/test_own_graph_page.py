"""What docs/own-graph.md quotes, files and error messages, is what one gets."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenphormer.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "own-graph.md").read_text(encoding="utf-8")
ErrorOf = Callable[..., str]


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's graph, written by the page's own code."""
    monkeypatch.chdir(tmp_path)
    code = PAGE.partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "docs/own-graph.md", "exec"), {"__name__": "__main__"})
    return tmp_path / "mygraph"


@pytest.fixture
def error_of(graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ErrorOf:
    """The error line of a training on that graph, which must be refused as bad input."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tokenphormer", "train", graph.name, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return run


def test_the_errors_are_quoted_as_they_are(graph: Path, error_of: ErrorOf) -> None:
    nodes, edges = graph / "nodes.csv", graph / "edges.csv"
    good_nodes, good_edges = nodes.read_text(encoding="utf-8"), edges.read_text(encoding="utf-8")
    found = []

    edges.write_text(good_edges + "p001,p999\n", encoding="utf-8")
    found.append(error_of())
    edges.write_text(good_edges, encoding="utf-8")

    lines = good_nodes.splitlines()
    lines[3] = lines[3].rpartition(",")[0] + ",many"
    nodes.write_text("\n".join(lines), encoding="utf-8")
    found.append(error_of())
    nodes.write_text(good_nodes, encoding="utf-8")

    found.append(error_of("--set", "max_epoch=20"))

    run = graph.with_name("run")
    run.mkdir()
    for name in ("run.json", "config.yaml"):
        (run / name).touch()
    found.append(error_of("--out", "run"))

    assert found == re.findall(r"^tokenphormer: error: .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv"])
def test_the_first_lines_are_quoted_as_they_are(graph: Path, name: str) -> None:
    for line in (graph / name).read_text(encoding="utf-8").splitlines()[:3]:
        assert line in PAGE
