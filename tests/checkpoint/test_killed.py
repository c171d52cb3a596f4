from __future__ import annotations

import os
import random
import signal
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tests.python import Python

import hookline as hl
from hookline.train import Saver, latest_checkpoint

_SAVE_FOR_EVER = """
import sys
import jax.numpy as jnp
import hookline as hl
from hookline.train import Saver, get_checkpoint_state

directory = sys.argv[1]
w = hl.Variable({name: jnp.zeros(200_000) for name in "abcd"}, name="w")
step = hl.train.get_or_create_global_step()
grow = hl.update((w, step), lambda state: ({name: x + 1 for name, x in state[0].items()}, state[1] + 1))
saver = Saver(max_to_keep=2)
with hl.Session() as sess:
    state = get_checkpoint_state(directory)
    if state is None:
        sess.run(hl.global_variables_initializer())
    else:
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
        saver.restore(sess, state.model_checkpoint_path)
    while True:
        sess.run(grow)
        saver.save(sess, directory + "/model.ckpt")
        print(sess.global_step, flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.campaign)])
def test_process_killed_while_replacing_a_checkpoint_leaves_a_complete_one(kills, tmp_path):
    directory, chance = str(tmp_path), random.Random(0)
    told = 0
    w = hl.Variable({name: jnp.zeros(200_000) for name in "abcd"}, name="w")
    step = hl.train.get_or_create_global_step()
    for _ in range(kills):
        with Python("-c", _SAVE_FOR_EVER, directory, stderr=None) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            told = int((process.stdout.read().split() or [first])[-1])
        newest = latest_checkpoint(directory)
        assert newest is not None
        with hl.Session() as sess:
            Saver().restore(sess, newest)
            values, found = sess.run((w, step))
        assert found in (told, told + 1)  # No checkpoint that was reported as complete is lost.
        assert all(np.array_equal(value, np.full(200_000, found)) for value in values.values())
    # The checkpoint, the state file, the lock and its owner, and leftovers of the last kill.
    assert len(os.listdir(directory)) <= 7
