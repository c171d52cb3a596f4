"""Trainings on as many CPU devices as are asked for, in a process of their own, which JAX must be told of before.

`python -m tests.loop.devices DIRECTORY JOB...`: a job is KIND:NAME:LAST_STEP, and trains a state of that kind below the
directory up to that step. What came of it is in a file of JSON beside its checkpoints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FEATURES = 64


def train(devices: int, directory: Any, *jobs: str, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Runs this module; returns what came of each job, and its log from WARNING on."""
    done = run(devices, [sys.executable, "-m", "tests.loop.devices", str(directory), *jobs], env)
    return {job: json.loads(_result(directory, job).read_text()) for job in jobs}, done.stderr


def _result(directory: Any, job: str) -> Path:
    kind, name, last_step = job.split(":")
    return Path(directory, kind, name, f"{last_step}.json")


def run(devices: int, command: list[str], env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Runs a process of Python with so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**env, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done


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
    given = _places(made.state)
    seen: list[dict[str, str]] = []

    class Look(hl.train.SessionRunHook):
        failed = False

        def after_create_session(self, session, coord):
            seen.append(_places(session.snapshot()["state"]))

        def after_run(self, run_context, run_values):
            if name == "lost" and run_context.session.global_step == 5 and not self.failed:
                self.failed = True
                raise hl.errors.UnavailableError(None, None, "away")

    evaluate = hl.train.Evaluate(made.eval_step, [np.ones((8, FEATURES), "float32")], every=3)
    loop = hl.train.Loop(made.nan_step if name == "nan" else made.step, made.state, made.batches())
    state = loop.run(
        logdir,
        last_step,
        hooks=[Look(), evaluate],
        progress=False,
        save_checkpoint_steps=2 if name in ("lost", "nan") else 100,
        on_nan="rollback" if name == "nan" else "raise",
        recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0),
    )
    arrays = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)]
    return {
        "given": given,
        "begun": seen,
        "ended": _places(state),
        "loaded": _places(hl.train.load(logdir, like=made.state)),
        "devices": max(len(array.devices()) for array in arrays),
        "values": [np.asarray(array, "float64").ravel().tolist() for array in arrays],
        "evaluated": evaluate.values,
    }


def _places(state: Any) -> dict[str, str]:
    """Returns for each array on which devices it lies, and how much on each."""
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
        state: Its state.
        batches: Makes its batches, in the default graph.
    """

    def __init__(self, state: Any, batches: Callable[[], Any]) -> None:
        import jax
        import jax.numpy as jnp
        import optax

        self.state, self.batches = state, batches

        def loss_of(params: Any, batch: Any) -> Any:
            return jnp.mean((jnp.tanh(batch @ params["w"]) @ params["v"] - batch.sum(axis=1)) ** 2)

        @jax.jit
        def step(state: Any, batch: Any) -> Any:
            loss, slope = jax.value_and_grad(loss_of)(state["params"], batch)
            updates, slots = optax.adam(1e-2).update(slope, state["slots"])
            params = optax.apply_updates(state["params"], updates)
            return {**state, "params": params, "slots": slots, "n": state["n"] + 1}, {"loss": loss}

        def nan_step(state: Any, batch: Any) -> Any:
            bad = batch.min() < -3.8  # In the fourth one alone.
            state, metrics = step(state, batch)
            return state, {"loss": jnp.where(bad, jnp.nan, metrics["loss"])}

        self.step, self.nan_step = step, nan_step
        self.eval_step = lambda state, batch: {"loss": loss_of(state["params"], batch)}


def _made(kind: str) -> _Job:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hookline as hl

    axis_type = jax.sharding.AxisType.Explicit if kind == "explicit" else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(axis_type,))
    rows, whole = jax.NamedSharding(mesh, jax.P("x")), jax.NamedSharding(mesh, jax.P())
    data = np.random.default_rng(0).normal(size=(160, FEATURES)).astype("float32")

    def batches(device: Any = None) -> Any:
        source = hl.data.arrays(data, 16, shuffle_seed=1, epochs=None)
        if device is None:
            return source
        with hl.Graph().as_default():
            return hl.data.iterator(source, device=device)

    width = 2 if kind == "small" else FEATURES
    one, other = jax.random.split(jax.random.key(0))
    params = {"w": jax.random.normal(one, (FEATURES, width)) / 8, "v": jax.random.normal(other, (width,)) / 8}
    state = {"params": params, "slots": optax.adam(1e-2).init(params), "n": jnp.zeros((), int)}

    def split(leaf: Any) -> Any:
        return jax.device_put(leaf, rows if np.ndim(leaf) and len(leaf) % jax.device_count() == 0 else whole)

    match kind:
        case "anywhere":  # The batches alone take the step to all devices.
            return _Job(state, lambda: batches(rows))
        case "parallel":
            return _Job(jax.device_put(state, whole), lambda: batches(rows))
        case "small" | "explicit":
            return _Job(jax.device_put(state | {"key": jax.random.key(7)}, whole), batches)
        case "fsdp":
            return _Job(jax.tree.map(split, state) | {"n": state["n"]}, lambda: batches(rows))
        case "last":
            return _Job(jax.device_put(state, jax.devices()[-1]), batches)
    raise ValueError(kind)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
