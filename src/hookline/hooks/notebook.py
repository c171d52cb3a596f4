"""CellLine: a progress line in the output of a notebook cell, updated in place."""

from __future__ import annotations

import html
from typing import Any

from hookline import notebooks
from hookline.hooks.progress_text import Progress


def is_cell(file: Any) -> bool:
    """Returns whether a file is the output of a notebook cell: a stream of a Jupyter kernel, in that kernel."""
    shell = notebooks.shell()
    return hasattr(shell, "kernel") and type(file).__module__.partition(".")[0] == "ipykernel"


class CellLine:
    """Shows the progress as one output of the running cell, which each `show` replaces.

    Printed and logged lines have outputs of their own. A cell that continues the training gets a new output, and the
    output of the earlier cell stays as it is. The notebook keeps the last progress, as text and as HTML with a bar; no
    widget is needed.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        """Replaces the shown progress."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        shell = notebooks.shell()
        bundle = {"text/plain": str(progress), "text/html": _as_html(progress)}
        cell = None if shell is None else shell.execution_count
        if self._handle is None or cell != self._cell:
            self._cell, self._handle = cell, display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def finish(self) -> None:
        """Keeps the last progress."""
        self._handle = None


def _as_html(progress: Progress) -> str:
    bar = ""
    if progress.last_step:
        done = min(progress.step, progress.last_step)
        bar = f'<progress value="{done}" max="{progress.last_step}"></progress> '
    return f'<div style="font-family: monospace; white-space: pre-wrap">{bar}{html.escape(str(progress))}</div>'
