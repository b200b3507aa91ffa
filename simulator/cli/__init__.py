"""The command line ``stepsim``: the outermost layer, the only one that knows all four packages."""

from .app import main

__all__ = ["main"]
