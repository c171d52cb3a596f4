"""CellLine: a line in the output of a notebook's cell, which is shown anew."""

from __future__ import annotations

import html
from typing import Any

from hookline import notebooks
from hookline.hooks.progress_text import Progress


def is_cell(file: Any) -> bool:
    """Returns whether it is the output of a notebook's cell: a stream of a Jupyter kernel, in that kernel."""
    shell = notebooks.shell()
    return hasattr(shell, "kernel") and type(file).__module__.partition(".")[0] == "ipykernel"


class CellLine:
    """Shows how far a training has come as one output of the cell that runs, which each `show` replaces.

    What others print or log stands in outputs of its own. A cell that goes on with the training gets an output of its
    own, too, and that of the cell before stays as it is. The notebook keeps what was shown last, as text and as HTML
    with a bar; no widget is needed.
    """

    def __init__(self) -> None:
        self._cell: Any = None
        self._handle: Any = None

    def show(self, progress: Progress) -> None:
        """Shows it in place of what was shown before."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        shell = notebooks.shell()
        bundle = {"text/plain": str(progress), "text/html": _as_html(progress)}
        cell = None if shell is None else shell.execution_count
        if self._handle is None or cell != self._cell:
            self._cell, self._handle = cell, display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def finish(self) -> None:
        """Leaves it as it stands."""
        self._handle = None


def _as_html(progress: Progress) -> str:
    bar = ""
    if progress.last_step:
        done = min(progress.step, progress.last_step)
        bar = f'<progress value="{done}" max="{progress.last_step}"></progress> '
    return f'<div style="font-family: monospace; white-space: pre-wrap">{bar}{html.escape(str(progress))}</div>'
