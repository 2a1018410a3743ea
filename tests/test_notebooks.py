"""The notebooks of examples/ run from top to bottom, and are kept without output."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def test_both_are_there() -> None:
    assert NOTEBOOKS == ["explanation.ipynb", "own-graph.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_kept_without_output(name: str) -> None:
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert len(notebook.cells) - len(code) >= 5  # there is something to read


@pytest.mark.filterwarnings("default")  # of Jupyter's own machinery; the notebook's process has its own filters
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)
