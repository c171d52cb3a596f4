"""Jobs that save checkpoints whose contents depend only on the global step, so that they can be checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train

MAX_TO_KEEP = 2
MANNERS = ("numbered", "replaced", "listener", "background")

Report = Callable[[str, int], None]


def contents(step: Any) -> tuple[Any, Any]:
    """Returns the values of the two variables, an array and a pytree, after so many steps: as good as random."""
    layer = {"kernel": _mixed(step, 1, (64, 32)), "bias": _mixed(step, 2, (32,))}
    return _mixed(step, 0, (100, 80)), {"layer": layer, "updates": jnp.asarray(step, jnp.int32)}


def _mixed(step: Any, salt: int, shape: tuple[int, ...]) -> jax.Array:
    """Mixes bits, as hash functions do; takes XLA no time to compile, as random numbers would."""
    numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    numbers = (numbers ^ jnp.asarray(step, jnp.uint32) << 20 ^ jnp.uint32(salt) << 16) * jnp.uint32(0x9E3779B1)
    numbers = (numbers ^ numbers >> 15) * jnp.uint32(0x85EBCA77)
    return numbers ^ numbers >> 13


_contents = jax.jit(contents)


class Model:
    """The variables of a job, in a graph of their own, and the update that takes them one step further."""

    def __init__(self) -> None:
        self.graph = hl.Graph()
        with self.graph.as_default():
            weights, tree = contents(0)
            self.variables = (hl.Variable(weights, name="weights"), hl.Variable(tree, name="tree"))
            self.step = train.get_or_create_global_step()
            change = hl.update(self.variables, lambda _, step: contents(step + 1), self.step)
            self.advance = hl.group(change, self.step.assign_add(1))
            self.initialise = hl.global_variables_initializer()


def found_step(model: Model, sess: hl.Session) -> int | None:
    """Returns the global step of a session whose variables are exactly what they were then; None if they are not."""
    values, step = sess.run((model.variables, model.step))
    expected = _contents(step)
    same = jax.tree.map(lambda one, other: one.dtype == other.dtype and np.array_equal(one, other), values, expected)
    return int(step) if jax.tree.all(same) else None


def run(manner: str, directory: str, last_step: int, report: Report = lambda path, step: None) -> None:
    """Trains, from the newest checkpoint there is, and saves after each step.

    Path and step of each checkpoint are reported at the moment when it is logged as saved.
    """
    model = Model()
    with model.graph.as_default():
        if manner in ("numbered", "replaced"):
            _run_saver(model, directory, last_step, report, numbered=manner == "numbered")
        else:
            _run_hook(model, directory, last_step, report, listens=manner == "listener")


def _run_saver(model: Model, directory: str, last_step: int, report: Report, numbered: bool) -> None:
    saver = train.Saver(max_to_keep=MAX_TO_KEEP)
    with hl.Session() as sess:
        state = train.get_checkpoint_state(directory)
        if state is None:
            sess.run(model.initialise)
        else:
            saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
            saver.restore(sess, state.model_checkpoint_path)
        for step in range(int(sess.run(model.step)) + 1, last_step + 1):
            sess.run(model.advance)
            report(saver.save(sess, f"{directory}/model.ckpt", model.step if numbered else None), step)


class _Listener(train.CheckpointSaverListener):
    def __init__(self, directory: str, report: Report) -> None:
        self.directory, self.report = directory, report

    def after_save(self, session: Any, global_step_value: int) -> None:
        self.report(f"{self.directory}/model.ckpt-{global_step_value}", global_step_value)


class _Log(logging.Handler):
    """Reports the saves in the log."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self.report = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Saved checkpoint"):
            path = record.getMessage().removeprefix("Saved checkpoint ").rstrip(".")
            self.report(path, int(path.rpartition("-")[2]))


def _run_hook(model: Model, directory: str, last_step: int, report: Report, listens: bool) -> None:
    scaffold = train.Scaffold(saver=train.Saver(max_to_keep=MAX_TO_KEEP))
    listeners = [_Listener(directory, report)] if listens else []
    hooks = [
        train.CheckpointSaverHook(directory, save_steps=1, scaffold=scaffold, listeners=listeners),
        train.StopAtStepHook(last_step=last_step),
    ]
    logger = logging.getLogger("hookline")
    log, level = _Log(report), logger.level
    if not listens:
        logger.addHandler(log)
        logger.setLevel(logging.INFO)
    try:
        with train.MonitoredTrainingSession(
            checkpoint_dir=directory,
            scaffold=scaffold,
            hooks=hooks,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
        ) as sess:
            while not sess.should_stop():
                sess.run(model.advance)
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
