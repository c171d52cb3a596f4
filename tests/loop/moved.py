"""Trainings over 4 CPU devices as published scripts write them, by hand and in a `Loop`; in a process of its own.

`python -m tests.loop.moved DIRECTORY` writes what came of each to its output, as JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.stand_ins import forget_programs

import hookline as hl

STEPS = 6
ROWS = np.random.default_rng(0).normal(size=(4, 16, 8)).astype("float32")


class Script(NamedTuple):
    """A training.

    Args:
        make: Makes what the step changes.
        step: Takes that and a batch. Returns the new state with metrics; or metrics alone, of NNX objects.
        batches: Where each batch lies.
        around: The block in which the script makes its state and its loop.
        is_made_in_place: Whether `Loop` is given the function.
    """

    make: Callable[[], Any]
    step: Callable[..., Any]
    batches: Any
    around: Callable[[], Any] = contextlib.nullcontext
    is_made_in_place: bool = True


def main(directory: str) -> None:
    found = {}
    for script in (boxes, shards, objects, references, modules):
        case = script()
        for given in ("value", "function") if case.is_made_in_place else ("value",):
            name = f"{script.__name__}, {given}"
            found[name] = {"hand": _by_hand(case), **_looped(case, given, str(Path(directory, name)))}
    print(json.dumps(found))


def _stream(case: Script) -> Any:
    return (jax.device_put(batch, case.batches) for batch in itertools.cycle(ROWS))


def _told(losses: list[Any], state: Any) -> dict[str, Any]:
    arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    return {
        "losses": [float(loss) for loss in losses],
        "parts": [str(array.sharding.shard_shape(array.shape)) for array in arrays],
        "devices": min(len(array.devices()) for array in arrays),
    }


def _by_hand(case: Script) -> dict[str, Any]:
    losses = []
    with case.around():
        state = case.make()
        step = (
            case.step if _are_objects(state) else jax.jit(case.step) if _is_plain(state) else eqx.filter_jit(case.step)
        )
        for batch in itertools.islice(_stream(case), STEPS):
            if _are_objects(state):
                losses.append(step(*state, batch)["loss"])
            else:
                state, metrics = step(state, batch)
                losses.append(metrics["loss"])
    return _told(losses, state)


def _are_objects(state: Any) -> bool:
    return isinstance(state, tuple) and isinstance(state[0], nnx.Module)


def _is_plain(state: Any) -> bool:
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))


class _Losses(hl.train.SessionRunHook):
    def __init__(self, loop: Any) -> None:
        self._loss, self.values = loop.metrics["loss"], []

    def before_run(self, run_context: Any) -> Any:
        return hl.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(run_values.results)


def _looped(case: Script, given: str, logdir: str) -> dict[str, Any]:
    """Returns the result of the training, of one resumed halfway, and the number of programs of the first."""

    def trained(last_step: int, logdir: str | None) -> dict[str, Any]:
        with case.around():
            state = case.make if given == "function" else case.make()
            loop = hl.train.Loop(case.step, state, lambda: _stream(case))
        losses = _Losses(loop)
        state = loop.run(logdir, last_step, hooks=[losses], progress=False, log_steps=None, nan_check=None)
        return _told(losses.values, state)

    forget_programs()
    with _Compilations() as compilations:
        whole = trained(STEPS, None)
    begun = trained(STEPS // 2, logdir)
    resumed = trained(STEPS, logdir)
    resumed["losses"] = begun["losses"] + resumed["losses"]
    return {"whole": whole, "resumed": resumed, "programs": compilations.count}


class _Compilations(logging.Handler):
    count = 0

    def __enter__(self) -> _Compilations:
        logger = logging.getLogger("hookline")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("hookline").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Compiling")


def _mesh(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType = AxisType.Auto) -> Any:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


# The scripts --------------------------------------------------------------------------------------------------------


def boxes() -> Script:
    """Flax Linen's boxes with names of axes; a step that is jitted with all its shardings, and donates its state.

    Flax looks whether there is a mesh in JAX's context. In one, a kernel that it flattens to make it is refused.
    """
    mesh = _mesh((4,), ("data",))
    names = nn.with_partitioning(nn.initializers.lecun_normal(), ("data", None, None))
    net = nn.Sequential([nn.DenseGeneral((2, 4), kernel_init=names, use_bias=False), nn.tanh])
    optimizer = optax.adam(1e-2)

    def init() -> TrainState:
        params = net.init(jax.random.key(0), ROWS[0])["params"]
        return TrainState.create(apply_fn=net.apply, params=params, tx=optimizer)

    shardings = nn.get_sharding(jax.eval_shape(init), mesh)
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def step(state: TrainState, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return jnp.mean((state.apply_fn({"params": params}, batch).sum(axis=(1, 2)) - batch.sum(axis=1)) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss}

    given = (shardings, rows)
    step = jax.jit(step, in_shardings=given, out_shardings=(shardings, whole), donate_argnums=0)
    return Script(jax.jit(init, out_shardings=shardings), step, rows)


def shards() -> Script:
    """Everything by hand in a `shard_map`: each device makes its shard of the weights, and gathers the others."""
    mesh = _mesh((4,), ("data",))
    places = {"w": P("data"), "v": P(), "n": P()}

    def init() -> Any:
        key = jax.random.key(jax.lax.axis_index("data"))
        return {"w": jax.random.normal(key, (2, 8)) / 3, "v": jnp.ones(8) / 3, "n": jnp.zeros((), int)}

    def step(state: Any, batch: Any) -> Any:
        def loss_fn(w: Any, v: Any) -> Any:
            whole = jax.lax.all_gather(w, "data", tiled=True)
            return jnp.mean((jnp.tanh(batch @ whole) @ v - batch.sum(axis=1)) ** 2)

        loss, (by_w, by_v) = jax.value_and_grad(loss_fn, (0, 1))(state["w"], state["v"])
        loss, by_v = jax.lax.pmean((loss, by_v), "data")
        new = {"w": state["w"] - 0.1 * by_w / 4, "v": state["v"] - 0.1 * by_v, "n": state["n"] + 1}
        return new, {"loss": loss}

    make = jax.shard_map(init, mesh=mesh, in_specs=(), out_specs=places, check_vma=False)
    step = jax.shard_map(step, mesh=mesh, in_specs=(places, P("data")), out_specs=(places, P()), check_vma=False)
    return Script(jax.jit(make), step, NamedSharding(mesh, P("data")))


class _Mlp(nnx.Module):
    """Its last weights cannot be split over the axis that they name: XLA lets that go."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        self.w = nnx.Param(init(rngs.params(), (8, 16)), out_sharding=(None, "model"))
        self.v = nnx.Param(init(rngs.params(), (16, 1)), out_sharding=(None, "model"))

    def __call__(self, x: Any) -> Any:
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ self.w), P("data", "model"))
        return (hidden @ self.v)[:, 0]


def objects() -> Script:
    """NNX objects that a jitted function makes inside of a mesh. The step needs it too, and the loop runs outside."""
    mesh = _mesh((2, 2), ("data", "model"))

    @nnx.jit
    def make() -> Any:
        model = _Mlp(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss_fn = lambda model: jnp.mean((model(batch) - batch.sum(axis=1)) ** 2)  # noqa: E731
        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return {"loss": loss}

    return Script(make, step, NamedSharding(mesh, P("data")), lambda: jax.set_mesh(mesh))


def references() -> Script:
    """Explicit axes inside of a mesh, and a step that writes references."""
    mesh = _mesh((4,), ("data",), AxisType.Explicit)

    def make() -> Any:
        w = jax.random.normal(jax.random.key(0), (8, 8), out_sharding=P("data", None)) / 3
        return {"w": w, "mean": jnp.zeros_like(w), "count": jnp.zeros((), int)}

    @jax.jit
    def write(refs: Any, batch: Any) -> Any:
        def loss_fn(w: Any) -> Any:
            made = jnp.einsum("bi,ij->bj", batch, w, out_sharding=P("data", None))
            return jnp.mean((made.sum(axis=1) - batch.sum(axis=1)) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(refs["w"][...])
        refs["count"][...] += 1
        refs["mean"][...] = 0.9 * refs["mean"][...] + 0.1 * grads
        refs["w"][...] -= 0.1 * refs["mean"][...] / (1 - 0.9 ** refs["count"][...])
        return {"loss": loss}

    def step(state: Any, batch: Any) -> Any:
        refs = jax.tree.map(jax.new_ref, state)
        metrics = write(refs, batch)
        return jax.tree.map(lambda ref: ref[...], refs), metrics

    return Script(jax.jit(make), step, NamedSharding(mesh, P("data")), lambda: jax.set_mesh(mesh))


def modules() -> Script:
    """Equinox modules with functions among their leaves; a step that keeps all shardings."""
    mesh = _mesh((4,), ("data",))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    optimizer = optax.adam(1e-2)

    def make() -> Any:
        model = eqx.nn.MLP(8, "scalar", 8, 1, key=jax.random.key(0))
        return eqx.filter_shard((model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))), whole)

    @eqx.filter_jit
    def step(state: Any, batch: Any) -> Any:
        (model, opt_state), batch = eqx.filter_shard(state, whole), eqx.filter_shard(batch, rows)
        loss_fn = lambda model: jnp.mean((jax.vmap(model)(batch) - batch.sum(axis=1)) ** 2)  # noqa: E731
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.filter_shard((eqx.apply_updates(model, updates), opt_state), whole), {"loss": loss}

    return Script(make, step, rows, is_made_in_place=False)


if __name__ == "__main__":
    main(sys.argv[1])
