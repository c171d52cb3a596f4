"""Makes summaries of tensors, and writes the event files that TensorBoard reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.summary.file_writer import FileWriter
from hookline.summary.ops import audio, histogram, image, merge, merge_all, scalar, text
from hookline.summary.writer_cache import FileWriterCache

if TYPE_CHECKING:
    from hookline.summary.protos import Event, SessionLog, Summary

__all__ = [
    "Event",
    "FileWriter",
    "FileWriterCache",
    "SessionLog",
    "Summary",
    "audio",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "text",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because the message classes take longer to import than the rest of the package.
    if name in ("Event", "SessionLog", "Summary"):
        from hookline.summary import protos

        return getattr(protos, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
