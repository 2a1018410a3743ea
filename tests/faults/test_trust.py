"""What comes from others: no network unless asked, archives stay in their folder, known flaws are told."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenphormer
from tests.faults.scripts import ROOT, load_script
from tests.tiny import contents
from tokenphormer.files import load_arrays
from tokenphormer.graph.raw_files import quiet

audit = load_script("audit")
SOURCE = Path(tokenphormer.__file__).parent
NETWORK = """
import json, os, pkgutil, sys, warnings
warnings.simplefilter("ignore")
os.environ["TRITON_INTERPRET"] = "1"
seen = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request", "ftplib.connect"):
        seen.append([event, str(arguments)])
sys.addaudithook(watch)
import tokenphormer
for module in pkgutil.walk_packages(tokenphormer.__path__, "tokenphormer."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
graph = tokenphormer.load_graph("debian")
tokenphormer.sample_walks(graph, "uniform", num_walks=1, nodes=[0])
if "ask" in sys.argv:
    import urllib.request
    try:
        urllib.request.urlopen("http://127.0.0.1:1/", timeout=1)
    except OSError:
        pass
print(json.dumps(seen))
"""


def network_use(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", NETWORK, *arguments], capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_no_network_unless_asked() -> None:
    """Every module is imported and a graph loaded; a request of our own shows that one would be seen."""
    seen = network_use("ask")
    assert {event for event, _ in seen} == {"urllib.Request", "socket.getaddrinfo", "socket.connect"}
    assert all("127.0.0.1" in arguments for _, arguments in seen)


# ---------------------------------------------------------------- archives


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_unpacked_here(path: Path) -> None:
    """Members of archives are read, never written; PyG's downloads are the exception, and are watched below."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    assert not names & {"extractall", "extract", "unpack_archive", "tarfile"}


def wicked(path: Path, outside: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../outside.npy", b"x")
        archive.writestr(str(outside), b"x")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc")
        archive.writestr("link/tokenphormer-outside", b"x")
    return path


def test_archives_stay_in_their_folder(tmp_path: Path) -> None:
    with quiet():
        from torch_geometric.data import extract_zip

        outside = tmp_path / "outside" / "absolute.npy"
        path = wicked(tmp_path / "wicked.zip", outside)
        with suppress(OSError):  # a link where a folder should be
            extract_zip(str(path), str(tmp_path / "deep" / "folder"), log=False)
    inside = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "wicked.zip"]
    assert inside
    assert all((tmp_path / "deep" / "folder") in path.parents for path in inside)
    assert not outside.exists()
    assert not Path("/etc/tokenphormer-outside").exists()


def test_members_with_paths_are_only_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("../../x.npy", "w") as member:
        np.lib.format.write_array(member, np.arange(3))
    before = contents(tmp_path.parent)
    assert load_arrays(tmp_path / "a.npz")["../../x"].tolist() == [0, 1, 2]
    assert contents(tmp_path.parent) == before


# ---------------------------------------------------------------- dependencies


def answer(*packages: tuple[str, list[str] | None]) -> dict[str, Any]:
    found: list[dict[str, Any]] = [{"name": "tokenphormer", "skip_reason": "editable"}]
    for name, flaws in packages:
        if flaws is None:
            found.append({"name": name, "skip_reason": "not found"})
        else:
            vulns = [{"id": flaw, "fix_versions": ["2"]} for flaw in flaws]
            found.append({"name": name, "version": "1", "vulns": vulns})
    return {"dependencies": found}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([("a", []), ("b", [])], 0, "no known vulnerability in 2 packages (0 not in the database)"),
        ([("a", []), ("b", None)], 0, "no known vulnerability in 1 packages (1 not in the database)"),
        ([("a", ["CVE-1"]), ("b", [])], 1, "a 1: CVE-1, mended in 2"),
        ([("a", None), ("b", None)], 77, "skipped: the database knew 0 of 2 packages"),
        ([("a", ["CVE-1"]), ("b", None), ("c", None)], 77, "skipped: the database knew 1 of 3 packages"),
        ([], 77, "skipped: the database knew 0 of 0 packages"),
    ],
)
def test_what_an_answer_means(packages: list[tuple[str, list[str] | None]], code: int, words: str) -> None:
    """pip-audit itself calls it "no known vulnerabilities" if a mirror knows no package at all."""
    assert audit.judge(answer(*packages))[0] == code
    assert words in audit.judge(answer(*packages))[1]


def test_a_database_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "find_spec", lambda name: name)
    for code, words in (
        ("import time; time.sleep(60)", "did not answer within 1 s"),
        ("import sys; sys.exit('no route to host')", "cannot be reached (no route to host)"),
    ):
        monkeypatch.setattr(audit, "COMMAND", [sys.executable, "-c", code])
        found = audit.audit(1 if "sleep" in code else 60)
        assert found[0] == 77
        assert words in found[1]
    monkeypatch.setattr(audit, "find_spec", lambda name: None)
    assert "not installed" in audit.audit(1)[1]


def test_dependencies_have_no_known_flaw() -> None:
    """Told, and not failed: a flaw published today does not make yesterday's commit worse. `make audit` fails."""
    command = [sys.executable, str(ROOT / "scripts" / "audit.py"), "--seconds", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1, 77), done.stderr
    if done.returncode:
        pytest.skip(" ".join(done.stdout.split()))
