"""The runtime loop: engines, sessions that own the memory, sampling, saved sessions. No torch on this path."""

from txl_export.runtime.engine import Engine
from txl_export.runtime.session import Session, TopK

__all__ = ["Engine", "Session", "TopK"]
