"""No memory, for real: a process that may have only so much says so in one line. GPUs: tests/training/test_loop.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="this system has no limits on memory")
CODE = """
import os, resource, sys
import torch
import tokenphormer.evaluation.runs
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
from tokenphormer.cli import main
main()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory is used is read from /proc")
def test_a_host_without_memory(tmp_path: Path) -> None:
    train = ["train", "debian", "--out", "run", "--device", "cpu", "--set", "hidden_channels=40000"]
    train += ["--set", "row_activation=false"]  # which such a width would be refused with
    done = subprocess.run(
        [sys.executable, "-c", CODE, *train], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "tokenphormer: error: not enough memory" in done.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "run" / "run.json").exists()
