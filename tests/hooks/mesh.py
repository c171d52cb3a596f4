"""Trainings with all hooks on four CPU devices, in a process of their own, since JAX reads their number at its start.

`python -m tests.hooks.mesh DIRECTORY JOBS LAYOUT...` prints as JSON what hooks have seen on each layout of the model in
each job; there are commas between jobs.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.stand_ins import forget_programs

import hookline as hl
from hookline.summary import FileWriterCache

ROWS, COLUMNS, BATCH = 16, 32, 16
NAN_BATCH = 5
AXES = {"automatic": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}


class Layout:
    """How a model is spread over devices, and how it computes there.

    Args:
        name: "one", or what is split, and the kind of the axes: "rows, explicit".
    """

    def __init__(self, name: str) -> None:
        self.split, _, kind = name.partition(", ")
        self.places: Any = None
        self.whole = self.batch = self.hidden = self.predicted = None
        if self.split == "one":
            return
        shape = (2, 2) if self.split == "columns" else (4,)
        mesh = jax.make_mesh(shape, ("data", "model")[: len(shape)], axis_types=(AXES[kind],) * len(shape))
        spec = {
            "batches": {"w": jax.P(), "v": jax.P()},
            "rows": {"w": jax.P("data"), "v": jax.P("data")},
            "columns": {"w": jax.P(None, "model"), "v": jax.P("model")},
        }[self.split]
        self.places = {name: jax.NamedSharding(mesh, spec[name]) for name in spec}
        self.whole, self.batch = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("data"))
        if kind == "explicit":
            columns = "model" if self.split == "columns" else None
            self.hidden = jax.NamedSharding(mesh, jax.P("data", columns))
            self.predicted = jax.NamedSharding(mesh, jax.P("data"))

    def params(self) -> dict[str, jax.Array]:
        one, other = jax.random.split(jax.random.key(0))
        return {
            "w": jax.random.normal(one, (ROWS, COLUMNS)) / 4,
            "v": jax.random.normal(other, (COLUMNS,)) / 6,
        }

    def loss(self, params: dict[str, Any], batch: Any) -> Any:
        hidden = jnp.tanh(jnp.einsum("br,rc->bc", batch, params["w"], out_sharding=self.hidden))
        predicted = jnp.einsum("bc,c->b", hidden, params["v"], out_sharding=self.predicted)
        return jnp.mean((predicted - batch.sum(axis=1)) ** 2)

    def state(self) -> dict[str, Any]:
        params = self.params()
        return {"params": params, "opt_state": optax.adam(1e-2).init(params), "n": jnp.zeros((), jnp.int32)}

    def sharding(self) -> Any:
        """Returns where the state lives."""
        if self.places is None:
            return None
        opt_state = jax.eval_shape(self.state)["opt_state"]
        beside = optax.tree_map_params(
            optax.adam(1e-2), lambda _, place: place, opt_state, self.places, transform_non_params=lambda _: self.whole
        )
        return {"params": self.places, "opt_state": beside, "n": self.whole}

    def step(self, state: dict[str, Any], batch: Any) -> Any:
        loss, grad = jax.value_and_grad(self.loss)(state["params"], batch)
        updates, opt_state = optax.adam(1e-2).update(grad, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "n": state["n"] + 1}, {"loss": loss}

    def evaluation(self, state: dict[str, Any], batch: Any) -> dict[str, Any]:
        return {"loss": self.loss(state["params"], batch), "norm": optax.tree.norm(state["params"])}

    def loop(self, data: Any) -> hl.train.Loop:
        with hl.Graph().as_default():
            batches = hl.data.iterator(hl.data.from_arrays(data, BATCH, epochs=None), device=self.batch)
        return hl.train.Loop(self.step, self.state, batches, sharding=self.sharding())


def examples(nan: bool = False) -> np.ndarray:
    data = np.random.default_rng(0).normal(size=(8 * BATCH, ROWS)).astype("float32")
    if nan:
        data[NAN_BATCH * BATCH] = np.nan
    return data


class Log(logging.Handler):
    """Keeps the lines of the log.

    Attributes:
        lines: The lines.
        compiled: How often XLA has compiled a program of a session.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.compiled = 0

    def heard(self, event: str, secs: float, fun_name: str = "", **more: Any) -> None:
        # For an array with a changed sharding XLA compiles again, and JAX traces nothing.
        self.compiled += event.endswith("backend_compile_duration") and "_trace" in fun_name

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def taken(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]


@contextlib.contextmanager
def log() -> Iterator[Log]:
    found, logger = Log(), logging.getLogger("hookline")
    logger.addHandler(found)
    jax.monitoring.register_event_duration_secs_listener(found.heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(found.heard)
        logger.removeHandler(found)


def numbers(tree: Any) -> list[float]:
    """Returns all numbers of a tree of arrays, or of texts."""
    if isinstance(tree, str):
        return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?|nan", tree)]
    found = [numbers(leaf) if isinstance(leaf, str) else np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
    return [float(number) for part in found for number in part]


def places(tree: Any) -> list[str]:
    """Returns which part of each array is on each device."""
    return [f"{leaf.sharding.shard_shape(leaf.shape)} of {leaf.shape}" for leaf in jax.tree.leaves(tree)]


def summaries(logdir: Path) -> dict[str, list[float]]:
    """Returns the written values, by the tag and the step."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    FileWriterCache.clear()
    found = {}
    for path in sorted(logdir.glob("events*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag.endswith("/sec"):
                    continue
                histogram = value.histo
                small = [bucket for limit, bucket in _buckets(histogram) if limit < 0.25]
                moments = [histogram.num, histogram.min, histogram.max, histogram.sum, histogram.sum_squares]
                told = [*moments, sum(small)] if value.HasField("histo") else [value.simple_value]
                found[f"{value.tag} {event.step}"] = told
    return found


def _buckets(histogram: Any) -> Iterator[tuple[float, float]]:
    return zip(histogram.bucket_limit, histogram.bucket, strict=True)


def hooks_of_a_loop(layout: Layout, logdir: Path) -> dict[str, Any]:
    loop = layout.loop(examples())
    params = loop.state["params"]
    with loop.graph.as_default():
        norm = hl.op(optax.tree.norm, name="norm")(params)
        hl.summary.scalar("norm", norm)
        hl.summary.histogram("w", params["w"])
        hl.summary.histogram("all", params)
        average = hl.train.ExponentialMovingAverage(0.5)
        averaged = average.apply(params)
    progress, last = io.StringIO(), hl.train.FinalOpsHook({"norm": norm, "average": average.average(params)})
    evaluate = hl.train.Evaluate(layout.evaluation, hl.data.from_arrays(examples()[:48], 16), every=2, keep_best="loss")
    seen: list[Any] = []

    class Averaging(hl.train.SessionRunHook):
        def before_run(self, run_context):
            return hl.train.SessionRunArgs(averaged)

        def end(self, session):
            seen.append(places(session.snapshot()))

    with log() as lines:
        state = loop.run(
            str(logdir),
            8,
            hooks=[
                hl.train.LoggingTensorHook({"norm": norm, "v": params["v"]}, every_n_iter=2),
                hl.train.ProgressHook({"norm": norm, **loop.metrics}, file=progress, trigger=hl.train.every(3)),
                hl.train.WatchdogHook(600),
                hl.train.StopIfNoImprovement("loss", patience=50),
                last,
                evaluate,
                Averaging(),
            ],
            log_steps=3,
            logging=hl.train.LoggingOptions(rate_steps=3, summary_steps=2),
            checkpoints=hl.train.CheckpointOptions(save_steps=4),
        )
    return {
        "state": numbers(state),
        "places": places(state),
        "all places": seen,
        "summaries": summaries(logdir),
        "evaluated": [evaluate.values, evaluate.best],
        "written": summaries(logdir / "eval"),
        "final": numbers(last.final_ops_values),
        # Which save is complete, and how fast it is, depends on the machine.
        "progress": [
            numbers(re.sub(r"  saved \d+|  \S+ steps/s.*", "", line)) for line in progress.getvalue().splitlines()
        ],
        "metrics": [numbers(line.partition(" (")[0]) for line in lines.taken(r"^step \d")],
        "logged": [numbers(line.partition(" (")[0]) for line in lines.taken("^norm = ")],
        "rates": len(lines.taken("/sec")),
        "best": numbers(hl.train.load(str(logdir), like=layout.state(), step="best", sharding=layout.sharding())),
        "loaded": places(hl.train.load(str(logdir), like=layout.state(), sharding=layout.sharding())),
        "compiled": [lines.compiled, *lines.taken("^Compiling")],
    }


def policy(on_nan: str, layout: Layout, logdir: Path) -> dict[str, Any]:
    """Trains over a batch with a NaN."""
    loop, found = layout.loop(examples(nan=True)), {}
    with log() as lines:
        try:
            loop.run(
                str(logdir),
                24,
                on_nan=on_nan,
                log_steps=None,
                progress=False,
                checkpoints=hl.train.CheckpointOptions(save_steps=3),
            )
        except hl.train.NanLossDuringTrainingError as error:
            found["raised"] = str(error).partition(" To look at")[0]  # The command has the folder.
    if on_nan not in ("raise", "stop"):
        found |= {"state": numbers(loop.result), "places": places(loop.result)}
    told = [re.sub(r"/\S+/", "", line) for line in lines.taken("^NanTensorHook")]
    return found | {"told": told, "compiled": [lines.compiled, *lines.taken("^Compiling")]}


def interruption(kind: str, layout: Layout, logdir: Path) -> dict[str, Any]:
    """Goes on from a checkpoint: of an earlier loop, after a lost session, or with the values of another training.

    Or with values of the host, which a hook loads.
    """

    class Interrupt(hl.train.SessionRunHook):
        done = kind not in ("lost", "loaded")

        def after_run(self, run_context, run_values):
            session = run_context.session
            if session.global_step == 5 and not self.done:
                self.done = True
                if kind == "lost":
                    raise hl.errors.UnavailableError(None, None, "away")
                session.load(jax.device_get(session.snapshot()))

    keywords = {
        "progress": False,
        "checkpoints": hl.train.CheckpointOptions(
            save_steps=2, recovery=hl.train.RecoveryPolicy(initial_backoff_secs=0)
        ),
        "log_steps": 2,
    }
    if kind in ("resumed", "warm"):
        layout.loop(examples()).run(str(logdir), 4, **keywords)
    loop = layout.loop(examples())
    if kind == "warm":
        with loop.graph.as_default():
            hl.train.init_from_checkpoint(str(logdir), {"state": loop.state})
    with log() as lines:
        state = loop.run(None if kind == "warm" else str(logdir), 8, hooks=[Interrupt()], **keywords)
    return {
        "state": numbers(state),
        "places": places(state),
        "compiled": [lines.compiled, *lines.taken("^Compiling")],
    }


def graph(layout: Layout, logdir: Path) -> dict[str, Any]:
    """Trains variables with an optimizer, and goes on in a second session."""
    with hl.Graph().as_default():
        beside = layout.places or dict.fromkeys(layout.params())
        params = {name: hl.Variable(value, name=name, sharding=beside[name]) for name, value in layout.params().items()}
        batch = hl.data.iterator(hl.data.from_arrays(examples(), BATCH, epochs=None), device=layout.batch)
        loss = hl.op(layout.loss, name="loss")(params, batch)
        step = hl.train.create_global_step()
        clipped = lambda learning_rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))  # noqa: E731
        optimizer = hl.train.Optimizer(clipped, learning_rate=lambda step: 0.02 / (1 + step))
        pairs = optimizer.compute_gradients(loss)
        train = optimizer.apply_gradients(pairs, step)
        average = hl.train.ExponentialMovingAverage(0.9)
        with hl.control_dependencies([train]):
            train = hl.group(train, average.apply())
        grads = {variable.op.name: grad for grad, variable in pairs}
        hl.summary.scalar("loss", loss)
        hl.summary.histogram("grads", grads)
        hl.summary.image("rows", hl.op(lambda batch: batch.reshape(BATCH, 4, 4, 1))(batch), max_outputs=3)
        norm = hl.op(optax.tree.norm, name="norm")(grads)
        averages = {name: average.average(variable) for name, variable in params.items()}
        last = hl.train.FinalOpsHook({"averages": averages, "rate": optimizer.learning_rate})
        evaluate = hl.train.Evaluate(
            {"loss": loss}, [{batch: examples()[:16]}, {batch: examples()[16:32]}], every=3, keep_best="loss"
        )
        found: dict[str, Any] = {}

        class Look(hl.train.SessionRunHook):
            def end(self, session):
                values = session.snapshot()
                found["values"] = {name: numbers(values[name]) for name in sorted(values)}
                found["places"] = {name: places(values[name]) for name in sorted(values)}

        with log() as lines:
            for until in (5, 9):
                hooks = [
                    hl.train.StopAtStepHook(last_step=until),
                    hl.train.NanTensorHook(norm, include_inf=True, strict=True),
                    hl.train.LoggingTensorHook([loss, norm], every_n_iter=2, at_end=True),
                    last,
                    evaluate,
                    Look(),
                ]
                with hl.train.MonitoredTrainingSession(
                    checkpoint_dir=str(logdir), hooks=hooks, save_summaries_steps=2, save_checkpoint_steps=3
                ) as session:
                    while not session.should_stop():
                        session.run(train)
        with log():
            at_end = hl.train.SummaryAtEndHook(str(logdir / "once"), summary_op=hl.summary.scalar("norms", norm))
            final = {"loss": hl.train.FinalOpsHook(loss), "averages": hl.train.FinalOpsHook(averages)}
            once = hl.train.evaluate_once(str(logdir), hooks=[at_end, *final.values()], final_ops=norm)
    return found | {
        "summaries": summaries(logdir),
        "once": [numbers(once), numbers({name: hook.final_ops_values for name, hook in final.items()})],
        "summaries at the end": summaries(logdir / "once"),
        "evaluated": [evaluate.values, evaluate.best],
        "final": numbers(last.final_ops_values),
        "final places": places(last.final_ops_values["averages"]),
        "logged": [numbers(line.partition(" (")[0]) for line in lines.taken("^loss:0 = ")],
        "compiled": [lines.compiled, *lines.taken("^Compiling")],
    }


def optimizers(layout: Layout, logdir: Path) -> dict[str, Any]:
    """Trains with optimizers whose state differs from their parameters: of another shape, or for some of them."""
    labels = {"w": "adam", "v": "sgd"}
    made = {
        "factored": optax.adafactor(1e-2, min_dim_size_to_factor=4),
        "labelled": optax.multi_transform({"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-2, momentum=0.9)}, labels),
    }
    found = {}
    for name, transformation in made.items():
        with hl.Graph().as_default():
            params = hl.Variable(layout.params(), name="params", sharding=layout.places)
            hl.Variable(params.initialized_value(), name="copy", trainable=False)
            loss = hl.op(layout.loss)(params, examples()[:BATCH])
            optimizer = hl.train.Optimizer(transformation)
            train = optimizer.minimize(loss, hl.train.create_global_step())
            with hl.Session() as session, log() as lines:
                session.run(hl.global_variables_initializer())
                for _ in range(4):
                    session.run(train)
                values = session.snapshot()
        opt_state = values[optimizer.slots[0].op.name]
        found[name] = {
            "values": numbers([values["params"], values["copy"], opt_state]),
            "places": places([values["params"], values["copy"], opt_state]),
            "compiled": lines.compiled,
        }
    return found


def readings(layout: Layout, logdir: Path) -> dict[str, Any]:
    """Reads scalars while it trains."""
    loop = layout.loop(examples())
    params = loop.state["params"]
    with loop.graph.as_default():
        norm = hl.op(optax.tree.norm, name="norm")(params)
        hl.summary.scalar("norm", norm)
        hl.summary.histogram("w", params["w"])
        summaries = hl.summary.merge_all()
    hooks = [
        hl.train.LoggingTensorHook({"norm": norm}, trigger=hl.train.every(2)),
        hl.train.SummarySaverHook(trigger=hl.train.every(2), output_dir=str(logdir), summary_op=summaries),
        hl.train.Evaluate(layout.evaluation, hl.data.from_arrays(examples()[:48], 16), every=2),
    ]
    collectives: list[list[str]] = []
    steps: list[int] = []

    class Step(hl.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            steps.append(run_context.session.global_step)

    hooks = [*hooks, hl.train.ProgressHook(loop.metrics, file=io.StringIO()), Step()]
    with loop.session(None, 8, hooks=hooks) as session, transfers() as sizes:
        while not session.should_stop():
            told = hl.RunMetadata()
            options = hl.RunOptions(output_partition_graphs=True)
            float(session.run((loop.train_op, loop.metrics["loss"]), options=options, run_metadata=told)[1])
            collectives.append(shapes_of_collectives(told.partition_graphs[-1]))
    return {"sizes": sorted(set(sizes)), "collectives": collectives, "steps": steps}


@contextlib.contextmanager
def transfers() -> Iterator[list[int]]:
    """Gives the sizes of all arrays that the host reads meanwhile."""
    sizes: list[int] = []
    kind = type(jnp.zeros(()))
    before = kind._value  # The common path of all calls.

    def value(array: Any) -> Any:
        sizes.append(array.size)
        return before.fget(array)

    kind._value = property(value)
    try:
        yield sizes
    finally:
        kind._value = before


def shapes_of_collectives(text: str) -> list[str]:
    """Returns the collectives of a compiled program: operations and the shapes that they make."""
    found = re.findall(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(", text)
    return sorted(f"{name} {shape}" for shapes, name in found for shape in re.findall(r"\w+\[[\d,]*\]", shapes))


JOBS: dict[str, Callable[[Layout, Path], dict[str, Any]]] = {
    "loop": hooks_of_a_loop,
    **{f"NaN: {on_nan}": functools.partial(policy, on_nan) for on_nan in ("raise", "stop", "skip", "rollback")},
    **{kind: functools.partial(interruption, kind) for kind in ("resumed", "lost", "loaded", "warm")},
    "optimizers": optimizers,
    "graph": graph,
    "readings": readings,
}


def main(directory: str, jobs: list[str], names: list[str]) -> None:
    logging.getLogger("hookline").setLevel(logging.INFO)
    logging.getLogger("hookline").propagate = False
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, job in itertools.product(names, jobs):
        logdir = Path(directory, *[re.sub(r"\W+", "_", part) for part in (name, job)])
        forget_programs()
        try:
            found[name][job] = JOBS[job](Layout(name), logdir)
        except Exception:  # The others deserve a check.
            found[name][job] = {"error": traceback.format_exc()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
