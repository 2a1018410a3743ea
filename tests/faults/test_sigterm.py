"""SIGTERM during a command that only writes: it ends, and takes what it had half written with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = {
    "generate": ["generate", "out/graph", "--nodes", "400000", "--degree", "20", "--features", "32"],
    "walks": ["walks", "debian", "--out", "out/walks.npy", "--num-walks", "2000", "--length", "40"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_left(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "tokenphormer", *COMMANDS[name]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 60
        while not any(out.iterdir()) and running.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    if running.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert running.returncode == 128 + signal.SIGTERM, said
    assert "Traceback" not in said
    assert list(out.iterdir()) == []
