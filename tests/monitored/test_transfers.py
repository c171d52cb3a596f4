"""Between two firings nothing is read from the device, and nothing waits for it, unless that is due."""

from __future__ import annotations

import collections

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hookline as hl
from hookline import train

ArrayImpl = type(jnp.zeros(()))
STEPS = 1000
BETWEEN_LOOKS = hl.SessionConfig().max_runs_ahead // 2


@pytest.fixture
def seen(monkeypatch):
    """Counts reads of an array, and waits for one."""
    counts = collections.Counter()
    read, wait = ArrayImpl._value, ArrayImpl.block_until_ready
    to_host = ArrayImpl.copy_to_host_async

    def counted(what, function):
        def call(self, *args, **kwargs):
            counts[what] += 1
            return function(self, *args, **kwargs)

        return call

    monkeypatch.setattr(ArrayImpl, "_value", property(counted("reads", read.fget)))
    for name in ("asarray", "array"):  # On CPU, NumPy reads the memory without a call to the array.
        convert = getattr(np, name)

        def converted(value, *args, convert=convert, **kwargs):
            counts["reads"] += isinstance(value, ArrayImpl)
            return convert(value, *args, **kwargs)

        monkeypatch.setattr(np, name, converted)
    monkeypatch.setattr(ArrayImpl, "copy_to_host_async", counted("reads", to_host))
    monkeypatch.setattr(ArrayImpl, "block_until_ready", counted("waits", wait))
    return counts


def test_counter_of_transfers_counts(seen):
    number = jnp.ones(()) * 2
    assert float(number) == 2
    assert np.asarray(jnp.ones(3)).sum() == 3
    number.block_until_ready()
    assert seen["reads"] >= 2
    assert seen["waits"] == 1


def test_between_triggers_only_the_latch_is_read_and_only_the_throttle_waits(tmp_path, seen):
    weights = hl.Variable(lambda: jnp.ones(4), name="weights")
    loss = hl.op(lambda w: (w**2).sum(), name="loss")(weights)
    hl.summary.scalar("loss", loss)
    train_op = train.Optimizer(optax.sgd(1e-3)).minimize(loss, train.get_or_create_global_step())
    hooks = [
        train.StopAtStepHook(last_step=10**6),
        train.LoggingTensorHook({"loss": loss}, every_n_iter=10**6),
        train.NanTensorHook(loss),
    ]
    with train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), hooks=hooks, save_summaries_steps=10**6, log_step_count_steps=10**6
    ) as session:
        for _ in range(200):  # The output due at the start has arrived and is written.
            session.run(train_op)
        seen.clear()
        for _ in range(STEPS):
            session.run(train_op)
        reads, waits = seen["reads"], seen["waits"]
        assert 0 < reads <= STEPS // BETWEEN_LOOKS + 1, seen
        # At each poll the latch, which is there already, and the fence before.
        assert waits <= 2 * (STEPS // BETWEEN_LOOKS + 1), seen
