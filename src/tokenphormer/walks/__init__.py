"""The four random walks of the paper: exact, reproducible to the bit, fast. `README.md` here is the contract."""

from tokenphormer.walks.reference import KINDS, Kind
from tokenphormer.walks.sampling import sample_walks

__all__ = ["KINDS", "Kind", "sample_walks"]
