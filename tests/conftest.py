"""What every test shares: the Triton interpreter where there is no GPU, the raw datasets, a private cache."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # tests run side by side; see cli/__init__.py

import pytest
import torch

# Must be set before triton is imported anywhere: without a GPU its kernels then run on CPU tensors.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The tests' tensors are small: threads would only wait for each other, and for those of the other workers.
torch.set_num_threads(1)

# A shell that starts the tests in the background has them ignore Ctrl-C, and all programs that they start with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing a test builds lands in the user's own cache; one folder a test run, so that datasets are built once.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tokenphormer-cache-")

RAW = Path(__file__).parents[2] / "shared" / "datasets"


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch finds none here"))


@pytest.fixture(scope="session")
def raw_datasets() -> Path:
    """The folder of raw datasets beside the repository (or in TOKENPHORMER_DATA), if there is one."""
    given = os.environ.get("TOKENPHORMER_DATA")
    root = Path(given) if given else RAW
    if not (root / "Planetoid").is_dir():
        pytest.skip("the raw datasets are not here; set TOKENPHORMER_DATA to the folder that holds Planetoid/ …")
    return root
