"""A plain train step under sessions and hooks."""

from hookline.loop.loop import Loop

__all__ = ["Loop"]
