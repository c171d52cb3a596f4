"""Folders with names of any bytes, in any locale."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

import hookline as hl
from hookline import train

TRAINING = """
import sys
import jax.numpy as jnp
import numpy as np
import hookline as hl
batches = hl.data.from_arrays(np.arange(16.0), 2)
step = lambda state, batch: (state + batch.sum(), {"loss": state})
print(hl.train.Loop(step, jnp.zeros(()), batches).run(sys.argv[1], int(sys.argv[2]), progress=False))
print(hl.train.load_variable(sys.argv[1], "state"))
"""


@pytest.mark.campaign
def test_training_resumes_in_a_folder_that_the_locale_cannot_encode(tmp_path):
    folder = tmp_path / "größe-模型"
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", TRAINING, folder, "2"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["6.0", "6.0"], done.stderr
    assert "Error" not in done.stderr
    batches = hl.data.from_arrays(jnp.arange(16.0), 2)
    step = lambda state, batch: (state + batch.sum(), {"loss": state})  # noqa: E731
    assert train.Loop(step, jnp.zeros(()), batches).run(str(folder), 4) == 28
    assert train.latest_checkpoint(str(folder)) == str(folder / "model.ckpt-4")


@pytest.mark.parametrize("name", [b"a\xff\xfe", "größe".encode()])
def test_training_resumes_in_a_folder_whose_name_cannot_be_decoded(tmp_path, name):
    folder = os.path.join(str(tmp_path), os.fsdecode(name))
    batches = hl.data.from_arrays(jnp.arange(16.0), 2)
    step = lambda state, batch: (state + batch.sum(), {"loss": state})  # noqa: E731
    assert train.Loop(step, jnp.zeros(()), batches).run(folder, 2) == 6
    assert train.Loop(step, jnp.zeros(()), batches).run(folder, 4) == 28
    train.verify(folder)
    written = b"".join(path.read_bytes() for path in pathlib.Path(folder).glob("*tfevents*"))
    assert f"{os.fsencode(folder).decode('utf-8', 'replace')}/model.ckpt-4".encode() in written
