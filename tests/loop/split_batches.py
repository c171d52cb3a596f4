"""Trainings on four CPU devices with batches that are put there in many ways; prints what came of each, as JSON.

`python -m tests.loop.split_batches DIRECTORY CASE...`, in a process that JAX knows four devices in.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import hookline as hl

CASES: dict[str, Callable[[], Any]] = {}
DIRECTORY = ""
LOG: list[str] = []

rng = np.random.default_rng(0)
X = rng.normal(size=(48, 4)).astype("float32")
Y = X.sum(axis=1)
ODD = slice(0, 22)  # In batches of 8, the last one has 6.


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def refused(function: Callable[[], Any]) -> Callable[[], Any]:
    """A case whose result is the text of an error."""

    def text() -> str:
        try:
            function()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was raised"

    CASES[function.__name__] = text
    return text


def mesh(shape: Any = (4,), names: Any = ("data",), kind: Any = AxisType.Auto, devices: Any = None) -> Any:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names), devices=devices)


def state_on(mesh: Any, spec: Any = None) -> dict[str, Any]:
    w = jnp.full((4,), 0.5)
    return {"w": w if mesh is None else jax.device_put(w, jax.NamedSharding(mesh, spec or jax.P()))}


def squares(w: Any, batch: Any) -> Any:
    x, y = batch
    return (x @ w - y) ** 2


def step(state: Any, batch: Any) -> Any:
    """The mean over a batch: `(x, y)`, or that with a mask."""
    is_padded = isinstance(batch, hl.data.Padded)
    content, mask = batch if is_padded else (batch, None)

    def loss_fn(w: Any) -> Any:
        return jnp.mean(squares(w, content), where=mask)

    loss, grads = jax.value_and_grad(loss_fn)(state["w"])
    return {"w": state["w"] - 0.1 * grads}, {"loss": loss, "first": content[0].sum()}


class Look(hl.train.SessionRunHook):
    """Records the sharding of each batch, its sum, and the loss."""

    def __init__(self, loop: Any) -> None:
        self._fetches = loop.graph.get_operation_by_name("batches").output, loop.metrics["first"], loop.metrics["loss"]
        self.places: list[list[str]] = []
        self.sums: list[float] = []
        self.losses: list[float] = []

    def before_run(self, run_context: Any) -> Any:
        return hl.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        batch, total, loss = run_values.results
        self.places.append([place(leaf) for leaf in jax.tree.leaves(batch)])
        self.sums.append(float(total))
        self.losses.append(float(loss))


def place(array: Any) -> str:
    """Returns the shape of an array's shard on each device: "2x4 on 4"."""
    sharding = array.sharding
    return f"{'x'.join(map(str, sharding.shard_shape(array.shape)))} on {len(sharding.device_set)}"


def trained(
    state: Any, batches: Any, logdir: Any = None, last_step: Any = None, step: Any = step, **arguments: Any
) -> dict[str, Any]:
    LOG.clear()
    loop = hl.train.Loop(step, state, batches, **arguments)
    look = Look(loop)
    found = loop.run(logdir, last_step, hooks=[look], progress=False)
    return {
        "w": np.asarray(found["w"]).tolist(),
        "losses": look.losses,
        "sums": look.sums,
        "places": look.places,
        "log": [line for line in LOG if "Loop" in line],
    }


def arrays(part: slice = slice(None), size: int = 8, **options: Any) -> Any:
    return hl.data.from_arrays((X[part], Y[part]), size, **options)


def one_by_one(part: slice = slice(None), size: int = 8) -> Iterator[Any]:
    x, y = X[part], Y[part]
    for begin in range(0, len(x), size):
        yield x[begin : begin + size], y[begin : begin + size]


def in_graph(batches: Any, **options: Any) -> Any:
    with hl.Graph().as_default():
        return hl.data.iterator(batches, name="batches", **options)


# Where batches are put -----------------------------------------------------------------------------------------------


@case
def on_one_device() -> Any:
    return trained(state_on(None), arrays())


@case
def by_default_automatic() -> Any:
    return trained(state_on(mesh()), arrays())


@case
def by_default_explicit() -> Any:
    return trained(state_on(mesh(kind=AxisType.Explicit)), arrays())


@case
def by_default_in_and_out_of_set_mesh() -> Any:
    found = []
    for kind in (AxisType.Auto, AxisType.Explicit):
        over = mesh(kind=kind)
        for made_in, run_in in ((True, True), (True, False), (False, True)):
            with jax.set_mesh(over) if made_in else contextlib.nullcontext():
                loop = hl.train.Loop(step, state_on(over), arrays())
            look = Look(loop)
            with jax.set_mesh(over) if run_in else contextlib.nullcontext():
                w = loop.run(hooks=[look], progress=False)["w"]
            found.append({"w": np.asarray(w).tolist(), "losses": look.losses, "places": look.places})
    return found


@case
def by_default_to_a_step_that_is_mapped_over_shards() -> Any:
    """On explicit axes such a step is refused where it gets, or is traced with, batches of another type."""
    found = []
    for kind in (AxisType.Auto, AxisType.Explicit):
        over = mesh(kind=kind)

        def mapped(state: Any, batch: Any, over: Any = over) -> Any:
            def of_a_shard(w: Any, batch: Any) -> Any:
                loss, grads = jax.value_and_grad(lambda w: jax.lax.pmean(squares(w, batch).mean(), "data"))(w)
                return loss, grads, jax.lax.psum(batch[0].sum(), "data")

            specs = {"in_specs": (jax.P(), jax.P("data")), "out_specs": jax.P()}
            loss, grads, first = jax.shard_map(of_a_shard, mesh=over, **specs)(state["w"], batch)
            return {"w": state["w"] - 0.1 * grads}, {"loss": loss, "first": first}

        for last_batch in ("keep", "drop"):
            found.append(trained(state_on(over), arrays(), step=mapped, last_batch=last_batch))
    return found


@case
def by_default_beside_a_state_in_parts() -> Any:
    return trained(state_on(mesh(), jax.P("data")), arrays())


@case
def by_default_two_axes() -> Any:
    return trained(state_on(mesh((2, 2), ("data", "model"))), arrays())


@case
def by_default_of_a_tensor() -> Any:
    return trained(state_on(mesh()), in_graph(arrays(), prefetch=0))


@case
def by_default_explicit_of_a_tensor_that_drops() -> Any:
    return trained(state_on(mesh(kind=AxisType.Explicit)), in_graph(arrays(), last_batch="drop"))


@case
def without_an_axis_data() -> Any:
    return trained(state_on(mesh(names=("x",))), arrays())


@case
def asked_for_with_a_spec() -> Any:
    return trained(state_on(mesh(names=("x",))), arrays(), batch_sharding=jax.P("x"))


@case
def asked_for_as_a_tree() -> Any:
    return trained(state_on(mesh()), arrays(), batch_sharding=(jax.P("data"), jax.P()))


@case
def asked_for_whole() -> Any:
    return trained(state_on(mesh()), arrays(), batch_sharding=jax.NamedSharding(mesh(), jax.P()))


@case
def asked_for_of_the_iterator() -> Any:
    x = mesh(names=("x",))
    return trained(state_on(x), in_graph(arrays(), sharding=jax.NamedSharding(x, jax.P("x"))))


@case
def asked_for_as_a_device() -> Any:
    return trained(state_on(None), in_graph(arrays(), device=jax.devices()[2]))


@case
def scalars_lie_whole_on_each_device() -> Any:
    with hl.Graph().as_default(), hl.Session() as session:
        batch = hl.data.iterator(
            [{"x": X[:8], "rate": 0.5}], sharding={"x": jax.NamedSharding(mesh(), jax.P("data")), "rate": None}
        )
        other = hl.data.iterator([{"x": X[:8], "rate": 0.5}], sharding=jax.NamedSharding(mesh(), jax.P("data")))
        found = session.run((batch, other))
    return [{name: place(array) for name, array in batch.items()} for batch in found]


# The last batch ------------------------------------------------------------------------------------------------------


@case
def last_batch_on_one_device() -> Any:
    return trained(state_on(None), arrays(ODD, epochs=2))


@case
def last_batch_padded() -> Any:
    return trained(state_on(mesh()), arrays(ODD, epochs=2), last_batch="pad")


@case
def last_batch_padded_explicit() -> Any:
    return trained(state_on(mesh(kind=AxisType.Explicit)), arrays(ODD, epochs=2), last_batch="pad")


@case
def last_batch_padded_by_a_tensor() -> Any:
    return trained(state_on(mesh()), in_graph(arrays(ODD, epochs=2), last_batch="pad"))


@case
def last_batch_dropped() -> Any:
    return trained(state_on(mesh()), arrays(ODD, epochs=2), last_batch="drop")


@case
def last_batch_that_can_be_split() -> Any:
    return [trained(state_on(place), arrays(slice(0, 20))) for place in (None, mesh(), mesh(kind=AxisType.Explicit))]


@refused
def first_batch_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), arrays(size=6))


@refused
def last_batch_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), arrays(ODD))


@refused
def last_batch_of_a_generator_refused() -> Any:
    trained(state_on(mesh()), lambda: one_by_one(ODD))


@refused
def last_batch_of_a_list_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), list(one_by_one(ODD)))


@refused
def first_batch_of_a_spec_refused() -> Any:
    with hl.Graph().as_default():
        spec = jax.ShapeDtypeStruct((6, 4), "float32")
        hl.data.iterator(lambda: iter([]), spec=spec, sharding=jax.NamedSharding(mesh(), jax.P("data")))


@refused
def other_dimension_refused() -> Any:
    hl.data.iterator([X[:8, :3]], sharding=jax.NamedSharding(mesh(), jax.P(None, "data")))


@refused
def too_few_dimensions_refused() -> Any:
    hl.data.iterator(arrays(), sharding=jax.NamedSharding(mesh((2, 2), ("a", "b")), jax.P("a", None)))


# Batches of sources --------------------------------------------------------------------------------------------------


@case
def arrays_of_one_device() -> Any:
    one = jax.NamedSharding(mesh((1,), ("x",), devices=jax.devices()[2:3]), jax.P("x"))
    places = [jax.devices()[1], one, None] * 2
    return trained(state_on(mesh()), list(map(jax.device_put, one_by_one(), places)))


@case
def arrays_on_the_mesh_stay() -> Any:
    both = mesh((2, 2), ("data", "model"))
    placed = [jax.device_put(batch, jax.NamedSharding(both, jax.P(("data", "model")))) for batch in one_by_one()]
    return trained(state_on(both), placed)


@case
def arrays_on_the_mesh_are_moved_where_it_is_asked_for() -> Any:
    placed = [jax.device_put(batch, jax.NamedSharding(mesh(), jax.P())) for batch in one_by_one()]
    return trained(state_on(mesh()), placed, batch_sharding=jax.P("data"))


@case
def arrays_that_lie_there_are_not_copied() -> Any:
    sharding = jax.NamedSharding(mesh(), jax.P("data"))
    given = jax.device_put(X[:8], jax.NamedSharding(mesh(), jax.P("data", None)))
    with hl.Graph().as_default(), hl.Session() as session:
        found = session.run(hl.data.iterator([given], sharding=sharding))

    def pointers(array: Any) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]

    return pointers(found) == pointers(given) and found.sharding == sharding


@refused
def arrays_on_another_mesh_refused() -> Any:
    other = jax.NamedSharding(mesh((2,), ("x",), devices=jax.devices()[:2]), jax.P("x"))
    hl.train.Loop(step, state_on(mesh()), [jax.device_put(batch, other) for batch in one_by_one()])


@refused
def later_arrays_on_another_mesh_refused() -> Any:
    other = jax.NamedSharding(mesh((2,), ("x",), devices=jax.devices()[:2]), jax.P("x"))
    first, second, *_ = one_by_one()
    trained(state_on(mesh()), lambda: iter([first, jax.device_put(second, other)]))


@refused
def arrays_on_another_mesh_without_an_axis_data_refused() -> Any:
    other = jax.NamedSharding(mesh((2,), ("x",), devices=jax.devices()[:2]), jax.P("x"))
    hl.train.Loop(step, state_on(mesh(names=("y",))), [jax.device_put(batch, other) for batch in one_by_one()])


@refused
def iterator_on_another_mesh_refused() -> Any:
    other = jax.NamedSharding(mesh((2,), ("x",), devices=jax.devices()[:2]), jax.P("x"))
    hl.train.Loop(step, state_on(mesh()), in_graph(arrays(), sharding=other))


@refused
def iterator_on_one_device_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), in_graph(arrays(), device=jax.devices()[2]))


@refused
def other_kind_of_axes_refused() -> Any:
    other = jax.NamedSharding(mesh(kind=AxisType.Explicit), jax.P("data"))
    hl.train.Loop(step, state_on(mesh()), arrays(), batch_sharding=other)


@case
def another_mesh_of_the_same_devices() -> Any:
    return trained(state_on(mesh()), arrays(), batch_sharding=jax.NamedSharding(mesh(names=("x",)), jax.P("x")))


@refused
def state_on_two_meshes_refused() -> Any:
    other = mesh((2,), ("x",), devices=jax.devices()[:2])
    hl.train.Loop(lambda state, batch: (state, {}), [state_on(mesh()), state_on(other)], arrays())


# Invalid shardings ---------------------------------------------------------------------------------------------------


@refused
def spec_without_a_mesh_refused() -> Any:
    hl.train.Loop(step, state_on(None), arrays(), batch_sharding=jax.P("data"))


@refused
def spec_with_another_axis_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), arrays(), batch_sharding=jax.P("rows"))


@refused
def spec_of_an_iterator_refused() -> Any:
    hl.data.iterator(arrays(), sharding=jax.P("data"))


@refused
def mesh_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), arrays(), batch_sharding=mesh())


@refused
def tree_of_another_structure_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), arrays(), batch_sharding={"x": jax.P("data")})


@refused
def sharding_and_device_refused() -> Any:
    hl.data.iterator(arrays(), sharding=jax.NamedSharding(mesh(), jax.P()), device=jax.devices()[0])


@refused
def sharding_twice_refused() -> Any:
    tensor = in_graph(arrays(), sharding=jax.NamedSharding(mesh(), jax.P("data")))
    hl.train.Loop(step, state_on(mesh()), tensor, batch_sharding=jax.P("data"))


@refused
def last_batch_of_a_tensor_refused() -> Any:
    hl.train.Loop(step, state_on(mesh()), in_graph(arrays()), last_batch="drop")


# Going on ------------------------------------------------------------------------------------------------------------


def _resumed(name: str, batches: Callable[[], Any], state: Any, **arguments: Any) -> Any:
    name = f"{DIRECTORY}/{name}"
    whole = trained(state, batches(), f"{name}-whole", 6, **arguments)
    first = trained(state, batches(), f"{name}-parts", 3, **arguments)
    second = trained(state, batches(), f"{name}-parts", 6, **arguments)
    return {"whole": whole, "parts": [first, second]}


@case
def resumed() -> Any:
    return _resumed("arrays", lambda: arrays(shuffle_seed=3, epochs=None), state_on(mesh()))


@case
def resumed_generator_of_placed_arrays() -> Any:
    sharding = jax.NamedSharding(mesh(), jax.P("data"))
    return _resumed(
        "generator", lambda: lambda: (jax.device_put(batch, sharding) for batch in one_by_one()), state_on(mesh())
    )


@case
def resumed_padded() -> Any:
    return _resumed("padded", lambda: arrays(ODD, shuffle_seed=3, epochs=None), state_on(mesh()), last_batch="pad")


@case
def resumed_with_another_batch_size() -> Any:
    """Goes on, on four devices, from example 3 of 48, where batches of 8 leave 5 for the last."""
    found: dict[str, Any] = {}
    for name, made in {"arrays": arrays, "function": lambda **options: lambda: arrays(**options)}.items():
        for last_batch, size in (("keep", 8), ("pad", 8), ("drop", 8), ("keep", 12)):
            logdir = f"{DIRECTORY}/resized-{name}-{last_batch}-{size}"
            trained(state_on(None), made(size=3 if size == 8 else 4), logdir, 1)
            try:
                loop = hl.train.Loop(step, state_on(mesh()), made(size=size), last_batch=last_batch)
                look = Look(loop)
                loop.run(logdir, hooks=[look], progress=False)
                found[f"{name} {last_batch} {size}"] = [look.places, sum(look.sums)]
            except hl.errors.OpError as error:
                found[f"{name} {last_batch} {size}"] = [type(error).__name__, str(error), len(look.sums)]
    return {**found, "sum": float(X[3:].sum()), "sum after 4": float(X[4:].sum())}


# Evaluation ----------------------------------------------------------------------------------------------------------


def evaluated(state: Any, batches: Any, **arguments: Any) -> Any:
    seen: list[str] = []

    def eval_step(state: Any, batch: Any) -> Any:
        content, mask = batch if isinstance(batch, hl.data.Padded) else (batch, None)
        jax.debug.inspect_array_sharding(
            content[0], callback=lambda sharding: seen.append(str(sharding.shard_shape(content[0].shape)))
        )
        return {"loss": jnp.mean(squares(state["w"], content), where=mask)}

    evaluate = hl.train.Evaluate(eval_step, batches, every=3, **arguments)
    hl.train.Loop(step, state, arrays()).run(last_step=3, hooks=[evaluate], progress=False)
    return {"loss": evaluate.values["loss"], "places": seen}


@case
def evaluated_on_one_device() -> Any:
    return evaluated(state_on(None), arrays(ODD))


@case
def evaluated_on_one_device_without_the_last() -> Any:
    return evaluated(state_on(None), arrays(slice(0, 16)))


@case
def evaluated_padded() -> Any:
    return evaluated(state_on(mesh()), arrays(ODD), last_batch="pad")


@case
def evaluated_padded_explicit() -> Any:
    return evaluated(state_on(mesh(kind=AxisType.Explicit)), arrays(ODD), last_batch="pad")


@case
def evaluated_dropped() -> Any:
    return evaluated(state_on(mesh()), arrays(ODD), last_batch="drop")


@case
def evaluated_whole() -> Any:
    return evaluated(state_on(mesh()), arrays(ODD), batch_sharding=jax.P())


@case
def evaluated_explicit_kept() -> Any:
    return evaluated(state_on(mesh(kind=AxisType.Explicit)), arrays(slice(0, 20)))


@case
def evaluated_on_one_device_kept() -> Any:
    return evaluated(state_on(None), arrays(slice(0, 20)))


@refused
def evaluated_last_batch_refused() -> Any:
    evaluated(state_on(mesh()), arrays(ODD))


@refused
def evaluated_first_batch_refused() -> Any:
    evaluated(state_on(mesh()), arrays(size=6))


@refused
def evaluated_later_batch_refused() -> Any:
    evaluated(state_on(mesh()), lambda: one_by_one(ODD))


@refused
def evaluated_on_another_mesh_refused() -> Any:
    other = jax.NamedSharding(mesh((2,), ("x",), devices=jax.devices()[:2]), jax.P("x"))
    evaluated(state_on(mesh()), arrays(), batch_sharding=other)


class _Kept(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOG.append(record.getMessage())


def main(directory: str, cases: list[str]) -> None:
    global DIRECTORY
    DIRECTORY = directory
    logger = logging.getLogger("hookline")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Kept())
    print(json.dumps({name: CASES[name]() for name in cases}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
