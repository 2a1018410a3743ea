"""The explorer: a trained run as a local page, with a JSON API behind it (`tokenphormer serve`)."""

from tokenphormer.serve.server import serve
from tokenphormer.serve.settings import ServeSettings

__all__ = ["ServeSettings", "serve"]
