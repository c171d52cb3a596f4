"""Trainings on a number of CPU devices, in a process of their own, since JAX reads it at its start.

`python -m tests.loop.devices DIRECTORY JOB...`: a job is KIND:NAME:LAST_STEP, and trains a state of that kind below the
directory up to that step. What came of it is in a file of JSON beside its checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import python

FEATURES = 64


def train(devices: int, directory: Any, *jobs: str, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Runs this module; returns the result of each job, and its log from WARNING on."""
    is_killed = any(":killed:" in job and not _result(directory, job).parent.exists() for job in jobs)
    command = ["-m", "tests.loop.devices", directory, *jobs]
    done = run(devices, command, env, code=-signal.SIGKILL if is_killed else 0)
    return {} if is_killed else {job: json.loads(_result(directory, job).read_text()) for job in jobs}, done.stderr


def _result(directory: Any, job: str) -> Path:
    kind, name, last_step = job.split(":")
    return Path(directory, kind, name, f"{last_step}.json")


def run(
    devices: int, command: list[object], env: Mapping[str, str] = os.environ, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs a process of Python with so many devices."""
    done = python.run(*command, cwd=Path(__file__).parents[2], env={**env, **on_devices(devices, env)}, timeout=900)
    assert done.returncode == code, done.stderr
    return done


def on_devices(count: int, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables for a number of devices."""
    return {"XLA_FLAGS": f"{env.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"}


def main(directory: str, jobs: list[str]) -> None:
    for job in jobs:
        kind, _, last_step = job.split(":")
        result = _result(directory, job)
        result.write_text(json.dumps(_trained(kind, str(result.parent), int(last_step))))


def _trained(kind: str, logdir: str, last_step: int) -> dict[str, Any]:
    import jax
    import numpy as np

    import hookline as hl

    made, name = _made(kind), os.path.basename(logdir)
    given = {} if callable(made.state) else _places(made.state)
    seen: list[dict[str, str]] = []
    lines: list[str] = []
    told = logging.getLogger("hookline")
    told.setLevel(logging.INFO)
    told.propagate = False
    told.handlers = [handler := logging.Handler(), shown := logging.StreamHandler()]
    shown.setLevel(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    first = hl.train.latest_checkpoint(logdir)

    class Look(hl.train.SessionRunHook):
        failed = False

        def after_create_session(self, session, coord):
            seen.append(_places(session.snapshot()["state"]))

        def after_run(self, run_context, run_values):
            if name == "lost" and run_context.session.global_step == 5 and not self.failed:
                self.failed = True
                raise hl.errors.UnavailableError(None, None, "away")
            if name == "killed" and run_context.session.global_step == 5 and not first:
                os.kill(os.getpid(), signal.SIGKILL)

    evaluate = hl.train.Evaluate(made.eval_step, [np.ones((8, FEATURES), "float32")], every=3)
    step = made.nan_step if name == "nan" else made.step
    loop = hl.train.Loop(step, made.state, made.batches(), sharding=made.sharding)
    state = loop.run(
        logdir,
        last_step,
        hooks=[Look(), evaluate],
        progress=False,
        checkpoints=hl.train.CheckpointOptions(
            save_steps=2 if name in ("lost", "nan", "killed") else 100,
            recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0),
        ),
        on_nan="rollback" if name == "nan" else "raise",
    )
    arrays = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)]
    return {
        "given": given,
        "begun": seen,
        "ended": _places(state),
        "loaded": {} if callable(made.state) else _places(hl.train.load(logdir, like=made.state)),
        "programs": sum(line.startswith("Compiling a program") for line in lines),
        "devices": max(len(array.devices()) for array in arrays),
        "values": [np.asarray(array, "float64").ravel().tolist() for array in arrays],
        "evaluated": evaluate.values,
    }


def _places(state: Any) -> dict[str, str]:
    """Returns for each array its devices, and its shard on each."""
    import jax

    return {
        jax.tree_util.keystr(path): f"{leaf.sharding.shard_shape(leaf.shape)} on {sorted(map(str, leaf.devices()))}"
        for path, leaf in jax.tree.leaves_with_path(state)
    }


def _is_key(leaf: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


class _Job:
    """A training.

    Args:
        state: Its state, or a function that makes it.
        batches: Makes its batches, in the default graph.
        sharding: Where the state lives.
        hidden: The sharding of the hidden layer; explicit axes require it.
        out: Likewise the result.
    """

    def __init__(
        self, state: Any, batches: Callable[[], Any], sharding: Any = None, hidden: Any = None, out: Any = None
    ) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        self.state, self.batches, self.sharding = state, batches, sharding

        def loss_fn(params: Any, batch: Any) -> Any:
            is_typed = jax.sharding.AxisType.Explicit in jax.typeof(params["w"]).sharding.mesh.axis_types
            places = (hidden, out) if is_typed else (None, None)
            layer = jnp.tanh(jnp.einsum("bi,ij->bj", batch, params["w"], out_sharding=places[0]))
            guess = jnp.einsum("bj,j->b", layer, params["v"], out_sharding=places[1])
            return jnp.mean((guess - batch.sum(axis=1)) ** 2)

        @jax.jit
        def step(state: Any, batch: Any) -> Any:
            loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
            updates, opt_state = optax.adam(1e-2).update(grads, state["opt_state"])
            params = optax.apply_updates(state["params"], updates)
            return {**state, "params": params, "opt_state": opt_state, "n": state["n"] + 1}, {"loss": loss}

        def nan_step(state: Any, batch: Any) -> Any:
            bad = batch.min() < -3.8  # In the fourth one alone.
            state, metrics = step(state, batch)
            return state, {"loss": jnp.where(bad, jnp.nan, metrics["loss"])}

        self.step, self.nan_step = step, nan_step
        self.eval_step = lambda state, batch: {"loss": loss_fn(state["params"], batch)}


def _made(kind: str) -> _Job:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    layout, _, axes = kind.partition("-")
    axis_type = jax.sharding.AxisType.Explicit if axes == "explicit" else jax.sharding.AxisType.Auto
    shape = {"x": jax.device_count()} if layout != "tensor" else {"x": 2, "y": jax.device_count() // 2}
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(axis_type,) * len(shape))
    rows, whole = jax.NamedSharding(mesh, jax.P("x")), jax.NamedSharding(mesh, jax.P())
    data = np.random.default_rng(0).normal(size=(160, FEATURES)).astype("float32")

    def batches(device: Any = None) -> Any:
        source = hl.data.from_arrays(data, 16, shuffle_seed=1, epochs=None)
        if device is None:
            return source
        with hl.Graph().as_default():
            return hl.data.iterator(source, device=device)

    def init(width: int = FEATURES) -> Any:
        one, other = jax.random.split(jax.random.key(0))
        params = {"w": jax.random.normal(one, (FEATURES, width)) / 8, "v": jax.random.normal(other, (width,)) / 8}
        return {"params": params, "opt_state": optax.adam(1e-2).init(params), "n": jnp.zeros((), int)}

    def split(leaf: Any) -> Any:
        return jax.device_put(leaf, rows if np.ndim(leaf) and len(leaf) % jax.device_count() == 0 else whole)

    match layout:
        case "one":
            return _Job(init(), batches)
        case "anywhere":  # The batches alone take the step to all devices.
            return _Job(init(), lambda: batches(rows))
        case "parallel":
            return _Job(jax.device_put(init(), whole), lambda: batches(rows))
        case "small":
            return _Job(jax.device_put(init(2) | {"key": jax.random.key(7)}, whole), batches)
        case "fsdp":
            return _Job(jax.tree.map(split, init()) | {"n": jnp.zeros((), int)}, lambda: batches(rows))
        case "tensor":
            rule = hl.sharding.by_path(mesh, {"w$": jax.P(None, "y"), "v$": jax.P("y")})
            return _Job(init, lambda: batches(rows), rule, hidden=jax.P("x", "y"), out=jax.P("x"))
        case "last":
            return _Job(jax.device_put(init(), jax.devices()[-1]), batches)
    raise ValueError(kind)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
