"""How many functions of hookline a call goes through in its thread, in how many files; `size.py` runs this.

Each path is taken twice, and counted the second time. Comprehensions and generator expressions belong to the function
around them: which of them are frames of their own differs by version of Python.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tiny_step

import hookline as hl
from hookline import train

EVERY, NEVER = 4, 10**6
HOUSE = str(Path(hl.__file__).parent)


def called(call: Callable[[], object], house: str = HOUSE) -> tuple[int, int]:
    """Counts the functions of a folder that a call goes through, and the files that they are in."""
    found = set()

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        named = not code.co_name.startswith("<") or code.co_name == "<lambda>"
        if event == "call" and named and code.co_filename.startswith(house + os.sep):
            # With the file, because equal code may stand in two.
            found.add((code.co_filename, code))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found), len({file for file, _ in found})


def second(call: Callable[[], object]) -> tuple[int, int]:
    call()
    return called(call)


def logged(every: int, stack: contextlib.ExitStack) -> Callable[[], object]:
    """Returns a run under a hook that logs the loss, first in the first run."""
    with hl.Graph().as_default():
        loss, train_op = tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        hook = train.LoggingTensorHook({"loss": loss}, every_n_iter=every)
        session = stack.enter_context(train.MonitoredSession(hooks=[hook]))
    return lambda: session.run(train_op)


def idle(stack: contextlib.ExitStack) -> tuple[int, int]:
    run = logged(NEVER, stack)
    run()
    return second(run)


def log_line(stack: contextlib.ExitStack) -> tuple[int, int]:
    run = logged(EVERY, stack)
    for _ in range(EVERY):
        run()
    return called(run)


def checkpoints(stack: contextlib.ExitStack, folder: str) -> dict[str, tuple[int, int]]:
    with hl.Graph().as_default():
        tiny_step.graph(*map(hl.constant, tiny_step.batch()))
        session, saver = stack.enter_context(hl.Session()), train.Saver()
        session.run(hl.global_variables_initializer())
    path, steps = f"{folder}/saved/model.ckpt", itertools.count()
    return {
        "`Saver.save`": second(lambda: saver.save(session, path, global_step=next(steps))),
        "`Saver.restore`": second(lambda: saver.restore(session, f"{path}-1")),
    }


def train_step(state, batch):
    state, loss = tiny_step.step(state, *batch)
    return state, {"loss": loss}


def eval_step(state, batch):
    return {"loss": tiny_step.loss_fn(state[0], *batch)}


def data() -> Any:
    return hl.data.from_arrays(tuple(map(np.asarray, tiny_step.batch(512))), batch_size=32)


def loop_session(stack: contextlib.ExitStack, folder: str) -> tuple[int, int]:
    loops = [train.Loop(train_step, tiny_step.state(), data()) for _ in range(2)]

    def make() -> None:
        loop = loops.pop()
        stack.callback(loop.session(f"{folder}/{len(loops)}").close)

    return second(make)


def evaluation(stack: contextlib.ExitStack) -> tuple[int, int]:
    loop = train.Loop(train_step, tiny_step.state(), data())
    hook = train.Evaluate(eval_step, data(), every=EVERY)
    session = stack.enter_context(loop.session(hooks=[hook], progress=False, log_steps=None, nan_check=None))
    for _ in range(2 * EVERY - 1):
        session.run(loop.train_op)
    return called(lambda: session.run(loop.train_op))


def main() -> None:
    # Lines are made, and go nowhere. By force: importing Orbax has given the root logger a handler.
    logging.basicConfig(handlers=[logging.NullHandler()], level=logging.INFO, force=True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # Or it is chance in which run a value arrives.
    gc.disable()  # What it calls is on no path.
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = {
            "a run in which no hook is due": idle(stack),
            "one log line": log_line(stack),
            **checkpoints(stack, folder),
            "`Loop.session`": loop_session(stack, folder),
            "one evaluation": evaluation(stack),
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
