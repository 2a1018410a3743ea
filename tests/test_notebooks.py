"""The notebooks of examples/ run from top to bottom, and are kept without output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

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


# In a process of its own: Jupyter leaves sockets and event loops behind, which Python complains of later, elsewhere.
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(notebook, sys.argv[3])
"""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    folders = {"TMPDIR": tmp_path, "IPYTHONDIR": tmp_path / "ipython", "JUPYTER_RUNTIME_DIR": tmp_path / "runtime"}
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-c", EXECUTE, str(EXAMPLES / name), str(work), str(tmp_path / name)]
    environment = os.environ | {key: str(folder) for key, folder in folders.items()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = nbformat.read(tmp_path / name, as_version=4)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)
