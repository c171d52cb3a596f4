"""A real kernel, in which cells run as they do in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Names that all cells of these tests may use.
SETUP = """
import gc, logging, os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
import hookline as hl
from hookline import train

logging.basicConfig(force=True)
x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
rows = hl.data.from_arrays(x, 32, shuffle_seed=1, epochs=None)

def noisy_step(state, batch, key):
    moved = state["w"] + batch.mean(axis=0) + 0.1 * jax.random.normal(key, (4,))
    return {"w": moved}, {"loss": jnp.sum(moved**2)}

def make():
    return train.Loop(noisy_step, {"w": jnp.zeros(4)}, rows, seed=5)

class Slow(train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.01)

handlers = logging.root.handlers[:], threading.active_count(), signal.getsignal(signal.SIGINT)
def assert_nothing_is_left():
    assert logging.root.handlers == handlers[0]
    for thread in threading.enumerate():
        # The end of the last lease, hook or writer wakes its thread, and waits for nobody.
        if thread.name.startswith(("hookline-leases", "hookline-account", "hookline-summary")):
            thread.join(5)
    assert threading.active_count() == handlers[1], threading.enumerate()
    assert signal.getsignal(signal.SIGINT) == handlers[2]
    assert signal.set_wakeup_fd(-1) == -1
"""


class Cell:
    """The results of a cell in the notebook."""

    def __init__(self, cell: Any) -> None:
        self.outputs = cell.outputs

    @property
    def text(self) -> str:
        """Returns the printed and logged text."""
        return "".join(output["text"] for output in self.outputs if output["output_type"] == "stream")

    @property
    def shown(self) -> list[Any]:
        """Returns the displayed data, by kind."""
        return [output["data"] for output in self.outputs if output["output_type"] == "display_data"]

    @property
    def result(self) -> str | None:
        """The representation of the last expression."""
        found = [output["data"]["text/plain"] for output in self.outputs if output["output_type"] == "execute_result"]
        return found[0] if found else None

    @property
    def error(self) -> str | None:
        """The name and the text of an exception."""
        found = [
            f"{output['ename']}: {output['evalue']}" for output in self.outputs if output["output_type"] == "error"
        ]
        return found[0] if found else None

    @property
    def traceback(self) -> str:
        """Returns the shown text of an exception, without colours."""
        lines = [line for output in self.outputs for line in output.get("traceback", ())]
        return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


class Notebook:
    """A notebook whose kernel runs."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.updates = 0

    def run(self, source: str, *, interrupts: tuple[str, ...] = ()) -> Cell:
        """Runs a new cell; interrupts it each time that the next of these texts has come out of it."""
        import nbformat

        self.updates, left = 0, list(interrupts)

        def listen(message: Any) -> None:
            self.updates += message["msg_type"] == "update_display_data"
            content = message["content"]
            said = content.get("text", "") + content.get("data", {}).get("text/plain", "")
            if left and left[0] in said:
                left.pop(0)
                asyncio.get_running_loop().call_later(0.4, lambda: asyncio.ensure_future(self._interrupt()))

        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        self._client.listen = listen
        self._client.execute_cell(cells[-1], len(cells) - 1)
        assert not left, f"It never said {left}: {cells[-1].outputs}"
        return Cell(cells[-1])

    def does(self, source: str) -> Cell:
        """Runs a cell that must not fail."""
        cell = self.run(source)
        assert cell.error is None, cell.traceback
        return cell

    async def _interrupt(self) -> None:
        await self._client.km.interrupt_kernel()

    @property
    def saved(self) -> Any:
        """The notebook as it would be saved."""
        return self._client.nb


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory, environment: Callable[..., dict[str, str]]) -> Iterator[Any]:
    """Returns a function that starts a kernel: a context manager that yields a `Notebook`."""
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="no kernel: pip install nbclient ipykernel")
    import nbformat
    from traitlets.config import Config

    folder = tmp_path_factory.mktemp("jupyter")

    class Client(nbclient.NotebookClient):
        listen = staticmethod(lambda message: None)

        def process_message(self, message: Any, *args: Any) -> Any:
            done = super().process_message(message, *args)
            self.listen(message)
            return done

    @contextlib.contextmanager
    def start(cwd: Path) -> Iterator[Notebook]:
        path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
        settings = {"allow_errors": True, "kernel_name": "python3", "timeout": 120}
        ipc = Config(KernelManager={"transport": "ipc", "ip": str(folder / f"kernel-{len(os.listdir(folder))}")})
        client = Client(nbformat.v4.new_notebook(), config=ipc, resources={"metadata": {"path": str(cwd)}}, **settings)
        with client.setup_kernel(env=environment() | {"PYTHONPATH": path, "IPYTHONDIR": str(folder)}):
            yield Notebook(client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        yield start


@pytest.fixture(scope="session")
def notebook(jupyter: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One kernel for all tests; each makes its own loops, in folders of its own."""
    with jupyter(tmp_path_factory.mktemp("notebook")) as notebook:
        notebook.does(SETUP)
        yield notebook
