"""A loop that leaves devices idle logs it, unless a sharding was given."""

from __future__ import annotations

import pytest

from .devices import run

CODE = """
import jax, jax.numpy as jnp, numpy as np
import hookline as hl

mesh = jax.make_mesh((4,), ("data",))
over_data = jax.NamedSharding(mesh, jax.P("data"))
for _ in range(2):
    loop = hl.train.Loop(lambda state, batch: {"w": state["w"] + batch.mean()}, {"w": jnp.zeros(())}, BATCHES)
    loop.run(progress=False)
"""


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        ("[jnp.ones(4)] * 2", 1),
        ("[np.ones(4)] * 2, batch_sharding=over_data", 0),
        ("[jax.device_put(np.ones(4), over_data)] * 2", 0),
        ("[np.ones(4)] * 2, sharding=jax.devices()[1]", 0),
    ],
    ids=["on the first device", "batch_sharding", "on a mesh", "on another device"],
)
def test_unused_devices_are_logged_once_unless_one_was_chosen(batches, count, environment):
    done = run(4, ["-c", CODE.replace("BATCHES", batches)], environment())
    assert done.stderr.count("are on one device, cpu:0, of 4") == count, done.stderr
