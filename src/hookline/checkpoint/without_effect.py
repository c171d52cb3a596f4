"""Arguments of `tf.train.Saver` that have no effect here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline import log

_logger = log.of(__name__)

OF_SAVER = frozenset({
    "sharded", "restore_sequentially", "saver_def", "builder", "defer_build", "write_version", "save_relative_paths",
    "filename",
})  # fmt: skip
OF_SAVE = frozenset({
    "meta_graph_suffix", "write_meta_graph", "write_state", "strip_default_attrs", "save_debug_info",
})  # fmt: skip
_told: set[str] = set()


def take_without_effect(who: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Logs once for each documented argument that it has no effect, and refuses others."""
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"{who} has no argument {unknown[0]!r}.")
    if new := sorted(given.keys() - _told):
        _told.update(new)
        _logger.info("%s: %s: taken, without effect.", who, ", ".join(new))
