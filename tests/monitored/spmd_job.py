"""Scenarios of monitored sessions, run one after another in each of several SPMD processes."""

import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import hookline as hl
from hookline import train

ME = jax.process_index()
SCENARIOS = {}


def scenario(function):
    """Registers a scenario by its name; a test checks its result."""
    SCENARIOS[function.__name__] = function
    return function


def model(limit=None):
    """Builds a model whose sum is an integer that differs for other examples."""
    step = train.get_or_create_global_step()
    examples = np.arange(64, dtype=np.int32)
    batch = hl.data.iterator(hl.data.from_arrays(examples, 8, shuffle_seed=3, epochs=limit))
    total = hl.Variable(jnp.zeros((), jnp.int32), name="total")
    summed = hl.op(lambda batch: batch.sum())(batch)
    return hl.group(total.assign_add(summed), step.assign_add(1)), summed, total


def refused(function):
    """Is a scenario that ends with an error in all; it returns its kind and its text."""

    def told():
        try:
            return function()
        except hl.errors.OpError as error:
            return [type(error).__name__, str(error)]

    SCENARIOS[function.__name__] = told
    return function


class Notes(train.SessionRunHook):
    """Notes at which steps it fires."""

    def __init__(self, trigger, fetches=None, late=False):
        self.trigger, self.fetches, self.deferred, self.steps, self.values = trigger, fetches, late, [], []

    def on_trigger(self, firing):
        self.steps.append(firing.global_step)
        if self.fetches is not None:
            self.values.append(np.asarray(firing.values).tolist())


class StopsAt(train.SessionRunHook):
    """Asks for a stop in one of the processes."""

    trigger = train.every(1)

    def __init__(self, step, process):
        self.step, self.process = step, process

    def on_trigger(self, firing):
        if process_is(self.process) and firing.global_step >= self.step:
            firing.context.request_stop()


def process_is(process):
    return process is None or process == ME


def trained(hooks, session=train.MonitoredSession, **arguments):
    """Trains a new model to the stop, and returns its step and its sum."""
    with hl.Graph().as_default():
        train_op, summed, total = model()
        with session(hooks=[*hooks(summed)], **arguments) as sess:
            while not sess.should_stop():
                sess.run(train_op)
            raw = sess.raw_session()
            return [raw.global_step, int(raw.run(total))]


@scenario
def stops_at_a_step():
    return trained(lambda summed: [train.StopAtStepHook(last_step=20)])


@scenario
def one_process_asks_for_a_stop():
    return trained(lambda summed: [StopsAt(7, process=1)])


@scenario
def all_ask_for_a_stop():
    return trained(lambda summed: [StopsAt(7, process=None)])


@scenario
def a_trigger_in_seconds():
    secs, steps = Notes(train.every(secs=0.02)), Notes(train.every(40))
    both, either = Notes(train.every(secs=0.02) & train.every(10)), Notes(train.every(secs=0.03) | train.every(30))
    found = trained(lambda summed: [secs, steps, both, either, train.StopAtStepHook(last_step=120)])
    return [found, secs.steps, steps.steps, both.steps, either.steps]


@scenario
def a_time_limit():
    return trained(lambda summed: [train.TimeLimitHook(secs=2.0 if ME == 0 else 1e6)])


@scenario
def a_time_limit_near_the_end():
    """The limit and the end of the training come at about the same run, each time in another order."""
    ends = []
    for secs in (0.1, 0.3, 0.6, 1.0, 2.0, 4.0):
        limit = train.TimeLimitHook(secs)
        ends.append(trained(lambda summed, limit=limit: [limit, train.StopAtStepHook(last_step=30)]))
    return ends


@scenario
def what_hooks_fetch():
    now, late = Notes(train.every(5), late=False), Notes(train.every(4), late=True)

    def hooks(summed):
        now.fetches = late.fetches = summed
        return [now, late, train.StopAtStepHook(last_step=20)]

    found = trained(hooks)
    return [found, now.steps, now.values, late.steps, late.values]


@scenario
def a_hook_of_the_chief():
    class Asks(Notes):
        ended = False

        def end(self, session):
            self.ended = True

    hook = Asks(train.every(5))

    def session(**arguments):
        return train.MonitoredTrainingSession(chief_only_hooks=[hook], log_step_count_steps=None, **arguments)

    with hl.Graph().as_default():
        train_op, hook.fetches, _ = model()
        with session(hooks=[train.StopAtStepHook(last_step=20)]) as sess:
            while not sess.should_stop():
                sess.run(train_op)
    return [hook.steps, hook.values, hook.ended]


@scenario
def summaries():
    from pathlib import Path

    with tempfile.TemporaryDirectory() as logdir, hl.Graph().as_default():
        train_op, summed, _ = model()
        hl.summary.scalar("summed", summed)
        hooks = [train.StopAtStepHook(last_step=20)]
        with train.MonitoredTrainingSession(summary_dir=logdir, save_summaries_steps=5, hooks=hooks) as sess:
            while not sess.should_stop():
                sess.run(train_op)
        return len(list(Path(logdir).glob("events*")))


@scenario
def a_latch():
    with hl.Graph().as_default():
        train_op, _, total = model()
        latch = hl.latch(hl.op(lambda total: total > 2000)(total))
        hook = Notes(train.latched(latch))
        with train.MonitoredSession(hooks=[hook, train.StopAtStepHook(last_step=40)]) as sess:
            runs = []
            while not sess.should_stop():
                sess.run(train_op)
                runs.append(len(hook.steps))
        return [hook.steps, runs.index(1) if 1 in runs else None]


@scenario
def waiting_for_a_step_is_refused():
    try:
        return trained(lambda summed: [train.GlobalStepWaiterHook(wait_until_step=5)])
    except RuntimeError as error:
        return str(error)


@scenario
def a_hook_that_runs_the_session():
    class Runs(train.SessionRunHook):
        trigger = train.every(10)

        def __init__(self):
            self.seen = []

        def on_trigger(self, firing):
            self.seen.append(int(firing.context.session.run(self.total)))

    hook = Runs()

    def hooks(summed):
        hook.total = hl.get_default_graph().get_tensor_by_name("total:0")
        return [hook, train.StopAtStepHook(last_step=30)]

    return [trained(hooks), hook.seen]


@scenario
def several_steps_a_run():
    notes = Notes(train.every(7))
    found = trained(lambda summed: [notes, train.StopAtStepHook(last_step=30)], steps_per_run=8)
    return [found, notes.steps]


@scenario
def one_is_slow():
    told = []

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    class Slow(train.SessionRunHook):
        trigger = train.every(10)

        def on_trigger(self, firing):
            if ME == 1 and firing.global_step == 10:
                before, until = len(told), time.monotonic() + 30
                while len(told) == before and time.monotonic() < until:
                    time.sleep(0.1)
                time.sleep(0.8)  # So that the other process notices it, too.

    logger, handler = logging.getLogger("hookline"), Told()
    logger.addHandler(handler)
    try:
        return trained(lambda summed: [Slow(), train.WatchdogHook(0.3), train.StopAtStepHook(last_step=20)]), told
    finally:
        logger.removeHandler(handler)


@scenario
def until_a_signal():
    class Says(train.SessionRunHook):
        trigger = train.every(1)

        def on_trigger(self, firing):
            if firing.global_step == 1:
                print("training", flush=True)

        def end(self, session):
            print("ended after", session.global_step, flush=True)

    return trained(lambda summed: [Says()])


@scenario
def one_fails():
    class Fails(train.SessionRunHook):
        trigger = train.every(1)

        def on_trigger(self, firing):
            if ME == 1 and firing.global_step == 9:
                raise OSError("the disk of process 1 is gone")

    return trained(lambda summed: [Fails(), train.StopAtStepHook(last_step=10**6)])


def other_values_at_step_5(of_others):
    class Differs(train.SessionRunHook):
        def before_run(self, run_context):
            wanted = self.doubled if ME == 1 else of_others and self.summed
            return train.SessionRunArgs(wanted) if wanted is not None and run_context.session.global_step == 5 else None

    hook = Differs()

    def hooks(summed):
        hook.summed, hook.doubled = summed, summed * 2
        return [hook, train.StopAtStepHook(last_step=20)]

    return trained(hooks)


@refused
def one_asks_for_other_values():
    return other_values_at_step_5(of_others=True)


@scenario
def one_asks_for_values_and_others_for_none():
    return other_values_at_step_5(of_others=None)


@refused
def one_launches_another_known_program():
    """At step 9 process 1 launches what both have launched at step 5: nobody meets for that, unless one asks for it."""
    hl.distributed.initialize(check_every_launch=True)

    class Differs(train.SessionRunHook):
        def before_run(self, run_context):
            global_step = run_context.session.global_step
            is_there = global_step == 5 or (global_step == 9 and ME == 1)
            return train.SessionRunArgs(self.doubled) if is_there else None

    hook = Differs()

    def hooks(summed):
        hook.doubled = summed * 2
        return [hook, train.StopAtStepHook(last_step=20)]

    return trained(hooks)


@refused
def one_has_other_initial_values():
    def hooks(summed):
        hl.Variable(np.full(3, 1.0 + ME), name="other")
        return [train.StopAtStepHook(last_step=20)]

    return trained(hooks)


@refused
def one_loop_begins_with_another_state():
    def step(state, batch):
        return state + batch.mean(), {"loss": batch.mean()}

    batches = hl.data.from_arrays(np.arange(64.0, dtype=np.float32), 8, epochs=1)
    return train.Loop(step, jnp.full(3, 1.0 + ME), batches).run(progress=False).tolist()


@refused
def one_has_a_batch_of_another_length():
    """At step 3, when process 0 has a length that neither has had, and process 1 the first one again."""

    def step(state, batch):
        return state + batch.mean(), {"loss": batch.mean()}

    lengths = (4, 4, 4 if ME else 8, 4)
    batches = [np.full((2, length), 1.0 + ME, np.float32) for length in lengths]
    return train.Loop(step, jnp.zeros(()), batches).run(progress=False).tolist()


@refused
def one_is_fed_another_value_once():
    class Feeds(train.SessionRunHook):
        def begin(self):
            self.fed = hl.placeholder(jnp.float32, (), name="fed")
            self.doubled = self.fed * 2

        def before_run(self, run_context):
            other = ME == 1 and run_context.session.global_step == 7
            return train.SessionRunArgs(self.doubled, {self.fed: 3.0 if other else 2.0})

    return trained(lambda summed: [Feeds(), train.StopAtStepHook(last_step=20)])


@scenario
def another_thread_asks_whether_to_stop():
    asked = []

    class Asks(train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.is_over = threading.Event()
            self.thread = threading.Thread(target=self.ask)
            self.thread.start()

        def ask(self):
            while not self.is_over.wait(0.0005):
                asked.append(hooks_session[0].should_stop() if hooks_session else False)

        def end(self, session):
            self.is_over.set()
            self.thread.join()

    hooks_session = []

    def session(**arguments):
        hooks_session.append(train.MonitoredSession(**arguments))
        return hooks_session[0]

    return [trained(lambda summed: [Asks(), StopsAt(40, process=1)], session)[0] >= 40, bool(asked)]


@scenario
def another_thread_runs_the_session():
    class Runs(train.SessionRunHook):
        trigger, error = train.every(10), None

        def on_trigger(self, firing):
            session = firing.context.session
            thread = threading.Thread(target=self.run, args=(session,), name="other")
            thread.start()
            thread.join()

        def run(self, session):
            try:
                session.run(self.doubled)
            except RuntimeError as error:
                self.error = str(error)

    hook = Runs()

    def hooks(summed):
        hook.doubled = hl.get_default_graph().get_tensor_by_name("total:0") * 2
        return [hook, train.StopAtStepHook(last_step=20)]

    return [trained(hooks)[0], hook.error]


@scenario
def one_fails_before_the_first_run():
    class Fails(train.SessionRunHook):
        def after_create_session(self, session, coord):
            if ME == 1:
                raise OSError("the disk of process 1 is gone")

    try:
        return trained(lambda summed: [Fails(), train.StopAtStepHook(last_step=20)])
    except (OSError, hl.errors.OpError) as error:
        return [type(error).__name__, str(error)]


@scenario
def a_signal_at_the_end():
    class Sends(train.SessionRunHook):
        def end(self, session):
            if ME == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            print("ended after", session.global_step, flush=True)

    return trained(lambda summed: [Sends(), train.StopAtStepHook(last_step=20)])


class Exits(train.SessionRunHook):
    """Calls sys.exit in one process, in a callback; it fetches a value, which a run needs in all processes."""

    def __init__(self, process, where, fetches, status=0):
        self.process, self.where, self.fetches, self.status, self.ended = process, where, fetches, status, None

    def before_run(self, run_context):
        self.exit_in("before_run", run_context)
        return train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        time.sleep(0.005 * ME)  # Others have begun the next run.
        self.exit_in("after_run", run_context)

    def exit_in(self, where, context):
        if (ME, where) == (self.process, self.where) and context.session.global_step == 10:
            sys.exit(self.status)

    def end(self, session):
        self.ended = session.global_step


def exits(function):
    """Returns the status with which a function would have ended its process; None if it has not."""
    try:
        function()
    except SystemExit as exit:
        return exit.code or 0


def exits_in(where, process):
    made = []

    def hooks(summed):
        made.append(Exits(process, where, summed))
        return [*made, train.StopAtStepHook(last_step=200)]

    return [exits(lambda: trained(hooks)), made[0].ended]


@scenario
def one_exits_in_a_callback():
    return [exits_in("before_run", 1), exits_in("after_run", 1), exits_in("after_run", 0)]


@scenario
def one_exits_in_the_script():
    hook = Exits(None, None, None)

    def train_until_exit():
        with hl.Graph().as_default():
            train_op, _, total = model()
            hook.fetches = total
            with train.MonitoredSession(hooks=[hook, train.StopAtStepHook(last_step=200)]) as sess:
                while not sess.should_stop():
                    sess.run(train_op)
                    if ME == 1 and hook.ended is None and sess.raw_session().global_step == 10:
                        sys.exit()

    return [exits(train_until_exit), hook.ended]


@scenario
def why_it_stops():
    class Lines(logging.Handler):
        def emit(self, record):
            if "training stops" in record.getMessage():
                lines.append(record.getMessage())

    logger, handler, lines = logging.getLogger("hookline"), Lines(), []
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if ME == 0 else logging.WARNING)
    trained(lambda summed: [StopsAt(7, process=1)])
    trained(lambda summed: [train.StopAtStepHook(last_step=3)])
    exits_in("after_run", 1)
    with hl.Graph().as_default():
        train_op, _, _ = model(limit=1)
        with train.MonitoredSession() as sess:
            while not sess.should_stop():
                sess.run(train_op)
    with hl.Graph().as_default():
        train_op, _, _ = model()
        with train.MonitoredSession() as sess:
            sess.run(train_op)
        with train.MonitoredSession() as sess:
            sess.run(train_op)
            if ME == 1:
                sess.request_stop()
            while not sess.should_stop():
                sess.run(train_op)
    logger.removeHandler(handler)
    return lines


@scenario
def one_exits_with_status_3():
    return trained(lambda summed: [Exits(1, "after_run", summed, status=3)])


@scenario
def one_leaves_its_session_open():
    with hl.Graph().as_default():
        train_op, _, _ = model()
        sess = train.MonitoredSession()
        for count in range(100):
            sess.run(train_op)
            if ME == 1 and count == 10:
                sys.exit()


@scenario
def one_ends_its_script_before_its_first_session():
    if int(os.environ["LEAVES"]) == ME:
        sys.exit()
    return trained(lambda summed: [])


@scenario
def one_that_has_failed_stays():
    hl.monitored.spmd_sync._STUCK_SECS = 1.0
    try:
        return other_values_at_step_5(of_others=None)
    except hl.errors.FailedPreconditionError as error:
        print(error, flush=True)
        time.sleep(60)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ.get("DUMP_SECS", "60")), exit=True)
    for name in sys.argv[1].split(","):
        print(json.dumps([name, SCENARIOS[name]()]), flush=True)
