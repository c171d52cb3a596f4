"""What becomes of states, steps and threads on 4 CPU devices, in a process of its own: `python -m tests.loop.on_mesh`.

Each function below is a case; what it returns, or the error that it raised, is printed as JSON by its name.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.stand_ins import forget_programs

import hookline as hl

EXPLICIT, AUTO = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
LARGE = 2**18


def mesh_of(axes: Any = AUTO, shape: tuple[int, ...] = (4,), names: tuple[str, ...] = ("data",)) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(axes,) * len(shape))


def init() -> Any:
    w = jax.random.normal(jax.random.key(0), (8, 4))
    return {"w": w, "opt_state": optax.adam(0.1).init(w), "n": jnp.zeros((), jnp.int32)}


def step(state: Any, batch: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(state["w"])
    changes, opt_state = optax.adam(0.1).update(grad, state["opt_state"], state["w"])
    return {"w": optax.apply_updates(state["w"], changes), "opt_state": opt_state, "n": state["n"] + 1}, {"loss": loss}


def batches() -> Any:
    return hl.data.from_arrays(np.random.default_rng(0).normal(size=(64, 8)).astype("float32"), 16, epochs=None)


def specs_of(tree: Any) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): str(getattr(leaf.sharding, "spec", "one device"))
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @property
    def programs(self) -> int:
        return sum(line.startswith("Compiling a program") for line in self.lines)


@contextlib.contextmanager
def log() -> Any:
    forget_programs()
    logger, found = logging.getLogger("hookline"), Log()
    logger.addHandler(found)
    try:
        yield found
    finally:
        logger.removeHandler(found)


def trained(state: Any, **keywords: Any) -> Any:
    """Returns the weights, their shardings and the number of programs."""
    train_step = keywords.pop("train_step", step)
    with log() as told:
        out = hl.train.Loop(train_step, state, batches(), **keywords).run(last_step=20, progress=False)
    moved = [line for line in told.lines if "fixes other shardings for variables" in line]
    return {"w": np.asarray(out["w"]).tolist(), "specs": specs_of(out), "programs": told.programs, "moved": moved}


def fsdp(mesh: jax.sharding.Mesh) -> Any:
    return hl.sharding.fsdp(mesh, min_size=8)


# States ---------------------------------------------------------------------------------------------------------


def one() -> Any:
    return trained(init())


def arrays() -> Any:
    mesh = mesh_of()
    return trained(jax.device_put(init(), fsdp(mesh)(jax.eval_shape(init))))


def function_with_a_rule() -> Any:
    return trained(init, sharding=fsdp(mesh_of()))


def function_with_a_rule_explicit() -> Any:
    return trained(init, sharding=fsdp(mesh_of(EXPLICIT)))


def function_that_places() -> Any:
    return trained(jax.jit(init, out_shardings=fsdp(mesh_of())(jax.eval_shape(init))))


def function_inside_a_mesh() -> Any:
    with jax.set_mesh(mesh_of()):
        return trained(init)


def uncommitted_count() -> Any:
    rows = jax.NamedSharding(mesh_of(), jax.P("data"))
    w = jax.device_put(init()["w"], rows)
    return trained({"w": w, "opt_state": optax.adam(0.1).init(w), "n": jnp.zeros((), jnp.int32)})


def abstract() -> Any:
    return hl.train.Loop(step, jax.eval_shape(init), batches())


def module_that_can_be_called() -> Any:
    import equinox

    model = equinox.nn.Linear(8, 4, key=jax.random.key(0))

    def module_step(model: Any, batch: Any) -> Any:
        grads = jax.grad(lambda m: jnp.mean(jax.vmap(m)(batch) ** 2))(model)
        return jax.tree.map(lambda w, grad: w - 0.1 * grad, model, grads), {}

    arrays = hl.train.Loop(module_step, model, batches()).run(last_step=3, progress=False)
    make = lambda: equinox.nn.Linear(8, 4, key=jax.random.key(0))  # noqa: E731
    loop = hl.train.Loop(module_step, make, batches(), sharding=hl.sharding.fsdp(mesh_of(), min_size=8))
    made = loop.run(last_step=3, progress=False)
    return {"same": bool(jnp.allclose(arrays.weight, made.weight, atol=1e-6)), "specs": specs_of(made)}


def nnx_objects_of_a_function() -> Any:
    from flax import nnx

    def make() -> Any:
        model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def objects_step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(batch) ** 2))(model)
        optimizer.update(model, grads)
        return {"loss": loss}

    given, _ = hl.train.Loop(objects_step, make(), batches()).run(last_step=3, progress=False)
    loop = hl.train.Loop(objects_step, make, batches(), sharding=hl.sharding.fsdp(mesh_of(), min_size=8))
    made, _ = loop.run(last_step=3, progress=False)
    same = bool(jnp.allclose(given.kernel[...], made.kernel[...], atol=1e-6))
    return {"same": same, "kernel": str(made.kernel[...].sharding.spec)}


# Steps ----------------------------------------------------------------------------------------------------------


def step_that_fixes_a_layout() -> Any:
    mesh = mesh_of()
    whole = jax.NamedSharding(mesh, jax.P())
    return trained(init, sharding=fsdp(mesh), train_step=jax.jit(step, out_shardings=(whole, None)))


def step_of_a_shard_map() -> Any:
    mesh = mesh_of()

    def mapped(state: Any, batch: Any) -> Any:
        def local(w: Any, batch: Any) -> Any:
            loss, grad = jax.value_and_grad(lambda w: jnp.mean((batch @ w - 1.0) ** 2))(w)
            return jax.lax.pmean(loss, "data"), jax.lax.pmean(grad, "data")

        # No mesh is named: the context's is used.
        parts = jax.shard_map(local, in_specs=(jax.P(), jax.P("data")), out_specs=(jax.P(), jax.P()), check_vma=False)
        loss, grad = parts(state["w"], batch)
        changes, opt_state = optax.adam(0.1).update(grad, state["opt_state"], state["w"])
        return {"w": optax.apply_updates(state["w"], changes), "opt_state": opt_state, "n": state["n"] + 1}, {
            "loss": loss
        }

    with jax.set_mesh(mesh):
        return trained(init, sharding=jax.NamedSharding(mesh, jax.P()), train_step=mapped)


def step_that_fixes_a_layout_inside() -> Any:
    """The constraint is inside another call."""
    mesh = mesh_of()
    whole = jax.NamedSharding(mesh, jax.P())

    def placed(state: Any, batch: Any) -> Any:
        state, metrics = step(state, batch)
        return state | {"w": jax.lax.with_sharding_constraint(state["w"], whole)}, metrics

    found = {}
    for name, train_step, keywords in (
        ("checkpoint", jax.checkpoint(placed), {}),
        ("guard", placed, {"on_nan": "skip"}),
        ("jit", jax.jit(jax.jit(placed)), {}),
    ):
        loop = hl.train.Loop(train_step, init, batches(), sharding=fsdp(mesh))
        found[name] = specs_of(loop.run(last_step=3, progress=False, **keywords))["['w']"]
    return found


def step_that_leaves_a_dimension_open() -> Any:
    mesh = mesh_of()
    some = jax.NamedSharding(mesh, jax.P(jax.P.UNCONSTRAINED, None))

    def placed(state: Any, batch: Any) -> Any:
        state, metrics = step(state, batch)
        return state | {"w": jax.lax.with_sharding_constraint(state["w"], some)}, metrics

    return trained(init, sharding=fsdp(mesh), train_step=placed)["specs"]


def programs_that_differ_about_a_layout() -> Any:
    """Returns the sharding of a variable after each run of two programs, one of which fixes another layout."""
    mesh = mesh_of()
    whole = jax.NamedSharding(mesh, jax.P())
    with hl.Graph().as_default(), hl.Session() as session:
        w = hl.Variable(lambda: jnp.zeros((8, 4)), name="w", sharding=jax.NamedSharding(mesh, jax.P("data")))
        plain = w.assign_add(jnp.ones((8, 4))).op
        moving = hl.update(w, lambda value: jax.lax.with_sharding_constraint(value + 1, whole), name="moving").op
        session.run(w.initializer)
        seen = []
        for update in (plain, moving, plain, moving, plain):
            session.run(update)
            seen.append(str(session.snapshot()["w"].sharding.spec))
        return [seen, float(session.run(w)[0, 0])]


def step_that_jax_refuses() -> Any:
    return trained(init, sharding=fsdp(mesh_of(EXPLICIT)), train_step=refused)


def refused(state: Any, batch: Any) -> Any:
    return state, {"loss": jnp.sum(state["w"] @ state["w"].T)}


def step_that_raises_on_explicit_axes() -> Any:
    return trained(init, sharding=fsdp(mesh_of(EXPLICIT)), train_step=lambda state, batch: state["v"])


# Inside and outside of a mesh -----------------------------------------------------------------------------------


def made_inside_and_run_outside() -> Any:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        loop = hl.train.Loop(step, init, batches(), sharding=jax.NamedSharding(mesh, jax.P()))
        session = loop.session(last_step=6, progress=False)
    with log() as told, session:
        while not session.should_stop():
            session.run(loop.train_op)
    return told.programs


def made_outside_and_run_inside() -> Any:
    mesh = mesh_of(EXPLICIT)
    loop = hl.train.Loop(step, init, batches(), sharding=jax.NamedSharding(mesh, jax.P()))
    session = loop.session(last_step=6, progress=False)
    with log() as told, session, jax.set_mesh(mesh):
        while not session.should_stop():
            session.run(loop.train_op)
    return told.programs


def threads_are_in_the_mesh() -> Any:
    seen = {}

    def source() -> Any:
        while True:
            seen["source"] = dict(jax.sharding.get_abstract_mesh().shape)
            yield np.ones(2, "float32")

    def target() -> None:
        seen["looper"] = dict(jax.sharding.get_abstract_mesh().shape)
        coord.request_stop()

    coord = hl.train.Coordinator()
    with jax.set_mesh(mesh_of()), hl.Graph().as_default():
        batch = hl.data.iterator(source, spec=np.ones(2, "float32"))
        looper = hl.train.LooperThread(coord, None, target)
        session = hl.Session()
    looper.start()
    coord.join([looper])
    session.run(batch)
    session.close()
    return seen


# A graph of one's own -------------------------------------------------------------------------------------------


def graph_of_variables() -> Any:
    mesh = mesh_of()
    with hl.Graph().as_default(), log() as told:
        params = hl.variables(lambda: {"w": init()["w"], "b": jnp.zeros(4)}, "net", sharding=fsdp(mesh))
        global_step = hl.train.get_or_create_global_step()
        x = hl.placeholder("float32", [16, 8])
        loss = hl.op(lambda w, b, x: jnp.mean((x @ w + b - 1.0) ** 2))(params["w"], params["b"], x)
        optimizer = hl.train.Optimizer(optax.adam(0.1))
        train_op = optimizer.minimize(loss, global_step)
        averages = hl.train.ExponentialMovingAverage(0.9)
        with_averages = hl.group(train_op, averages.apply([params["w"]]))
        with hl.train.MonitoredSession(hooks=[hl.train.StopAtStepHook(last_step=6)]) as session:
            while not session.should_stop():
                session.run(with_averages, {x: np.ones((16, 8), "float32")})
            raw = session.raw_session()
            raw.load({"net/w": np.ones((8, 4), "float32")})
            values = raw.snapshot()
    return {"specs": specs_of(values), "programs": told.programs}


# Mistakes -------------------------------------------------------------------------------------------------------


def two_meshes() -> Any:
    other = jax.NamedSharding(mesh_of(EXPLICIT, (2, 2), ("data", "model")), jax.P())
    with hl.Graph().as_default():
        hl.Variable(jax.device_put(jnp.ones(4), jax.NamedSharding(mesh_of(), jax.P())), name="a")
        hl.Variable(jax.device_put(jnp.ones(4), other), name="b")


def leaf_that_does_not_divide() -> Any:
    rows = jax.NamedSharding(mesh_of(), jax.P("data"))
    return hl.train.Loop(step, lambda: {"w": jnp.ones((6, 4))}, batches(), sharding=rows)


# Memory ---------------------------------------------------------------------------------------------------------


def live() -> int:
    """Returns how much of the devices' memory arrays take; `large` takes 32."""
    gc.collect()
    shards = [shard.data for array in jax.live_arrays() if array.nbytes > 1000 for shard in array.addressable_shards]
    # The parts of an array are arrays, too, of the same memory.
    memory = {(str(data.devices()), data.unsafe_buffer_pointer()): data.nbytes for data in shards}
    return round(sum(memory.values()) / LARGE)


def live_before() -> int:
    """Returns the live memory before a case, and freezes the garbage collector's known objects: it runs often."""
    found = live()
    gc.freeze()
    return found


class Memory(hl.train.SessionRunHook):
    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.seen["created"] = live()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen["step"] = live()

    def end(self, session: Any) -> None:
        self.seen["end"] = live()


def large() -> Any:
    return {"a": jnp.zeros((4, LARGE)), "b": jnp.ones((4, LARGE)), "n": jnp.zeros((), jnp.int32)}


def large_step(state: Any, batch: Any) -> Any:
    return {"a": state["a"] + 1.0, "b": state["b"] * 0.5, "n": state["n"] + 1}, {}


def _memory(state: Any, **keywords: Any) -> dict[str, int]:
    """Returns the live part of a state of 32, beside the memory live before."""
    before, memory = live_before(), Memory()
    loop = hl.train.Loop(large_step, state() if keywords.pop("called", False) else state, batches(), **keywords)
    out = loop.run(last_step=4, progress=False, hooks=[memory])
    memory.seen["after"] = live()
    del out
    return {what: found - before for what, found in memory.seen.items()}


def memory_of_a_function() -> Any:
    return _memory(large)


def memory_of_a_function_in_parts() -> Any:
    return _memory(large, sharding=fsdp(mesh_of()))


def memory_of_arrays() -> Any:
    return _memory(large, called=True)


def memory_of_a_checkpoint() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        seen = []
        for last_step in (4, 8):
            before, memory = live_before(), Memory()
            loop = hl.train.Loop(large_step, large, batches(), sharding=fsdp(mesh_of()))
            loop.run(folder, last_step, progress=False, hooks=[memory])
            seen.append({what: found - before for what, found in memory.seen.items()})
            del loop
        return seen


def memory_before_a_restore() -> Any:
    """Returns the live memory when the arrays of a checkpoint are read: by a recovery, and by a rollback."""
    from hookline.checkpoint import orbax_io  # The moment before a read is no user's.

    class Fail(hl.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.session.global_step == 3 and not reads:
                raise hl.errors.UnavailableError(None, None, "away")

    def nan_step(state: Any, batch: Any) -> Any:
        state, _ = large_step(state, batch)
        return state, {"loss": jnp.where(state["n"] == 5, jnp.nan, 1.0)}

    reads: list[int] = []
    read = orbax_io.read
    orbax_io.read = lambda *arguments: reads.append(live() - before) or read(*arguments)
    before = live_before()
    try:
        with tempfile.TemporaryDirectory() as folder:
            loop = hl.train.Loop(nan_step, large, batches(), sharding=fsdp(mesh_of()))
            recovery = hl.train.RecoveryPolicy(initial_backoff_secs=0)
            saves = hl.train.CheckpointOptions(save_steps=2, recovery=recovery)
            loop.run(folder, 8, hooks=[Fail()], on_nan="rollback", checkpoints=saves, progress=False)
    finally:
        orbax_io.read = read
    return reads


CASES = [
    one, arrays, function_with_a_rule, function_with_a_rule_explicit, function_that_places, function_inside_a_mesh,
    uncommitted_count, abstract, module_that_can_be_called, nnx_objects_of_a_function, step_that_fixes_a_layout,
    step_of_a_shard_map, step_that_fixes_a_layout_inside, step_that_leaves_a_dimension_open,
    programs_that_differ_about_a_layout, step_that_jax_refuses, step_that_raises_on_explicit_axes,
    made_inside_and_run_outside,
    made_outside_and_run_inside,
    threads_are_in_the_mesh, graph_of_variables, two_meshes, leaf_that_does_not_divide, memory_of_a_function,
    memory_of_a_function_in_parts, memory_of_arrays, memory_of_a_checkpoint, memory_before_a_restore,
]  # fmt: skip


def main() -> None:
    logger = logging.getLogger("hookline")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    found = {}
    for case in CASES:
        try:
            found[case.__name__] = case()
        except Exception as error:
            notes = " ".join(getattr(error, "__notes__", []))
            found[case.__name__] = f"{type(error).__name__}: {error} {notes}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
