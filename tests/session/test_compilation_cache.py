"""JAX's compilation cache serves a session that is started again."""

from __future__ import annotations

import os

from tests import python

JOB = """
import hookline as hl
import jax.numpy as jnp

weights = hl.Variable(lambda: jnp.ones(3), name="weights")
loss = hl.op(lambda w: (w**2).sum(), name="loss")(weights)
hl.summary.scalar("loss", loss)
train_op = hl.train.Optimizer(__import__("optax").adam(0.1)).minimize(loss, hl.train.get_or_create_global_step())
hooks = [hl.train.StopAtStepHook(last_step=5), hl.train.NanTensorHook(loss)]
with hl.train.MonitoredTrainingSession(checkpoint_dir={folder!r}, hooks=hooks, save_summaries_steps=2) as session:
    while not session.should_stop():
        session.run(train_op)
"""


def test_restarted_job_compiles_nothing(tmp_path):
    cache = tmp_path / "cache"
    settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def compiled_by(name: str) -> set[str]:
        job = JOB.format(folder=str(tmp_path / name))
        python.run("-c", job, env=os.environ | settings, check=True)
        return {path.name for path in cache.iterdir() if not path.name.endswith("-atime")}

    first = compiled_by("first")
    assert len(first) >= 3  # The initial values, the lean program, and the one with summaries.
    assert compiled_by("second") == first
