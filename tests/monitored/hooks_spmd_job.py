"""Each built-in hook, in SPMD processes: its actions by step, its files and its log lines, by process.

Those that disturb no other are in the first training; each has a folder of its own to write to.
"""

import faulthandler
import io
import json
import logging
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from tests import spmd

import hookline as hl
from hookline import train

CASES = {}
LAST_STEP, NAN_AT = 20, 13


def case(function):
    """Registers a case by its name; it returns the hooks, and a function that reads the result."""
    CASES[function.__name__] = function
    return function


class Log(logging.Handler):
    """Records hookline's log lines, and their loggers."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append([record.name, record.getMessage()])


class Model:
    """A model whose loss is the sum of a batch; on request it is NaN once."""

    folder = ""

    def __init__(self, has_nan):
        step = train.get_or_create_global_step()
        batch = hl.data.iterator(hl.data.from_arrays(np.arange(64.0, dtype=np.float32), 8, shuffle_seed=3, epochs=None))
        self.weight = hl.Variable(jnp.zeros(()), name="weight")
        at = NAN_AT if has_nan else -1
        self.loss = hl.op(lambda batch, step: jnp.where(step == at - 1, jnp.nan, batch.sum()))(batch, step)
        hl.summary.scalar("loss", self.loss)
        self.fed = hl.placeholder(jnp.float32, (), name="fed")
        self.uses_feed = self.fed * 2.0
        self.train_op = hl.group(self.weight.assign_add(self.loss), step.assign_add(1))


@case
def stop_at_step(model):
    return [], lambda: None


@case
def logging_tensor(model):
    return [train.LoggingTensorHook({"loss": model.loss}, every_n_iter=5)], lambda: None


@case
def step_counter(model):
    return [train.StepCounterHook(every_n_steps=5, output_dir=model.folder)], lambda: None


@case
def summary_saver(model):
    summaries = hl.summary.merge_all()
    return [train.SummarySaverHook(save_steps=5, output_dir=model.folder, summary_op=summaries)], lambda: None


@case
def sinks(model):
    table, (saver, _) = Path(model.folder, "scalars.csv"), summary_saver(model)
    lines = lambda: len(table.read_text().splitlines()) if table.exists() else 0  # noqa: E731
    return [train.SinkHook([hl.sinks.Csv()], model.folder), *saver], lines


@case
def summary_at_end(model):
    return [train.SummaryAtEndHook(model.folder)], lambda: None


@case
def profiler(model):
    return [train.ProfilerHook(save_steps=5, output_dir=model.folder)], lambda: None


@case
def progress(model):
    shown = io.StringIO()
    return [train.ProgressHook({"loss": model.loss}, every_secs=0.01, file=shown)], lambda: bool(shown.getvalue())


@case
def feed_fn(model):
    hook = train.FeedFnHook(lambda: {model.fed: 3.0})
    seen = []

    class Sees(train.SessionRunHook):
        trigger, fetches = train.every(10), model.uses_feed

        def on_trigger(self, firing):
            seen.append(float(firing.values))

    return [hook, Sees()], lambda: seen


@case
def final_ops(model):
    hook = train.FinalOpsHook({"weight": model.weight})
    return [hook], lambda: float(hook.final_ops_values["weight"])


@case
def watchdog(model):
    return [train.WatchdogHook(stall_secs=600)], lambda: None


@case
def bound_to_an_operation(model):
    noted = []

    class Notes(train.SessionRunHook):
        trigger = train.every(5)

        def on_trigger(self, firing):
            noted.append(firing.global_step)

    return [train.only_for(model.train_op, Notes())], lambda: noted


def nan_case(on_nan):
    def nan(model):
        return [train.NanTensorHook(model.loss, on_nan=on_nan)], lambda: None

    nan.__name__ = f"nan_{on_nan}"
    return case(nan)


for kind in ("raise", "stop", "skip"):
    nan_case(kind)


@case
def checkpoint_saver(model):
    place = spmd.gather("folder", model.folder)[0]
    return [train.CheckpointSaverHook(place, save_steps=5)], lambda: hl.train.latest_checkpoint(place)[-2:]


def trained(names):
    """Trains with the hooks of some cases.

    Returns the step, the weight and the error, what is logged, and for each case what it says and has written.
    """
    log = Log()
    logger = logging.getLogger("hookline")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    with hl.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
        model, hooks, tells = Model(names[0].startswith("nan")), [], {}
        for name in names:
            model.folder = f"{folder}/{name}"
            Path(model.folder).mkdir()
            its, tells[name] = CASES[name](model)
            hooks += its
        ended = []

        class Looks(train.SessionRunHook):
            def end(self, session):
                ended[:] = [session.global_step, float(session.run(model.weight))]

        error = None
        try:
            with train.MonitoredSession(hooks=[*hooks, Looks(), train.StopAtStepHook(last_step=LAST_STEP)]) as session:
                while not session.should_stop():
                    session.run(model.train_op)
        except hl.errors.OpError as raised:
            error = f"{type(raised).__name__} {raised}"
        except train.NanLossDuringTrainingError as raised:
            error = f"{type(raised).__name__} {raised}"
        told = {name: None if error else tell() for name, tell in tells.items()}
        spmd.meet("the end of a training")
        files = {name: sum(path.is_file() for path in Path(folder, name).rglob("*")) for name in names}
    logger.removeHandler(log)
    return {"ended": ended, "error": error, "logged": log.lines, "told": told, "files": files}


if __name__ == "__main__":
    alone = [name for name in CASES if name == "sinks" or name.startswith("nan")]
    for names in ([name for name in CASES if name not in alone], *([name] for name in alone)):
        faulthandler.dump_traceback_later(60, exit=True)
        print(json.dumps(trained(names)), flush=True)
