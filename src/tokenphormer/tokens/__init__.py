"""The token sequence of a batch of nodes, assembled lazily: self, SGPM, hops, walks."""

from tokenphormer.tokens.source import TokenBatch, TokenSettings, TokenSource

__all__ = ["TokenBatch", "TokenSettings", "TokenSource"]
