"""Numba's threads beside torch's."""

from __future__ import annotations

from contextlib import suppress

import numba
import torch
from numba.np.ufunc import threading_layer


def launch() -> None:
    """Start Numba's threads, if they are not there yet, and leave torch as many as it had.

    With OpenMP Numba sets their number, one a core, for the whole process. Torch would take it over in the midst of a
    training, whatever it was told, and each number of threads adds up gradients in its own order.
    """
    with suppress(ValueError):  # not started yet
        threading_layer()
        return
    threads = torch.get_num_threads()
    numba.get_num_threads()  # starts them
    torch.set_num_threads(threads)
