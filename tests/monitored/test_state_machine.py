"""Any order of run, failure, stop, recovery and close keeps the promises of the lifecycle."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hookline.errors import AbortedError, UnavailableError
from hookline.testing import FakeClock, FakeSession
from hookline.train import MonitoredSession, RecoveryPolicy, SessionCreator, SessionRunHook


class Watching(SessionRunHook):
    def __init__(self):
        self.calls, self.fail, self.stop, self.coord = [], None, False, None

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("created")
        self.coord = coord

    def before_run(self, run_context):
        self.calls.append("before")

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        if self.stop:
            run_context.request_stop()
        if self.fail is not None:
            fail, self.fail = self.fail, None
            raise fail

    def end(self, session):
        self.calls.append("end")

    def on_exception(self, session, exception):
        self.calls.append("exception")


class Lifecycle(RuleBasedStateMachine):
    @initialize()
    def open(self):
        self.clock = FakeClock()
        self.clock.__enter__()
        self.raws = raws = []
        self.script = script = []

        class Creator(SessionCreator):
            def create_session(self):
                def faults():
                    while True:
                        yield script.pop(0) if script else None

                raws.append(FakeSession(faults(), global_step=raws[-1].global_step if raws else 0))
                return raws[-1]

        self.hook = Watching()
        self.session = MonitoredSession(Creator(), [self.hook], recovery=RecoveryPolicy(max_attempts=1000))
        self.closed = self.stopped = self.failed_once = False
        self.recoveries = 0

    def teardown(self):
        if hasattr(self, "session"):
            if not self.closed:
                self.session.close()
            self.clock.__exit__(None, None, None)

    @property
    def step(self):
        return self.raws[-1].global_step

    @precondition(lambda self: not self.closed and not self.stopped)
    @rule(stop=st.booleans())
    def run_well(self, stop):
        step, self.hook.stop = self.step, stop
        self.session.run("train")
        self.stopped, self.hook.stop = stop, False
        assert self.step == step + 1
        assert self.hook.calls[-2:] == ["before", "after"]
        assert self.session.should_stop() >= stop

    @precondition(lambda self: not self.closed and not self.stopped)
    @rule(kind=st.sampled_from([AbortedError, UnavailableError]), in_hook=st.booleans(), stop=st.booleans())
    def run_lost_once(self, kind, in_hook, stop):
        error, before = kind(None, None, "lost"), len(self.raws)
        self.hook.stop = stop
        if in_hook:
            self.hook.fail = error
        else:
            self.script.append(error)
        self.session.run("train")
        self.stopped, self.hook.stop = stop, False
        self.recoveries += 1
        assert len(self.raws) == before + 1
        assert self.raws[-2].closed
        assert self.hook.calls[-3:] == ["created", "before", "after"]

    @precondition(lambda self: not self.closed and not self.stopped)
    @rule()
    def run_badly(self):
        self.script.append(ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            self.session.run("train")
        assert self.hook.calls[-2:] == ["before", "exception"]

    @precondition(lambda self: not self.closed)
    @rule(stop=st.sampled_from(["session", "coordinator", None]))
    def stop_cleanly(self, stop):
        if stop == "session":
            self.session.request_stop()
        elif stop == "coordinator":
            self.hook.coord.request_stop()
        if stop:
            assert self.session.should_stop()

    @precondition(lambda self: not self.closed)
    @rule()
    def thread_preempted(self):
        was_stopped, before = self.hook.coord.should_stop(), len(self.raws)
        self.hook.coord.request_stop(UnavailableError(None, None, "away"))
        answer = self.session.should_stop()
        assert answer == (was_stopped or self.stopped)
        # The first request to stop wins: after a clean one the error is only logged.
        assert len(self.raws) == before + (not was_stopped)
        self.recoveries += not was_stopped

    @precondition(lambda self: not self.closed and self.stopped)
    @rule()
    def run_after_the_stop(self):
        calls = len(self.hook.calls)
        with pytest.raises(RuntimeError, match="should_stop requested"):
            self.session.run("train")
        assert "before" not in self.hook.calls[calls:]

    @precondition(lambda self: not self.closed)
    @rule(error=st.sampled_from([None, ValueError("body"), StopIteration(), AbortedError(None, None, "body")]))
    def leave(self, error):
        self.closed = True
        clean = error is None or isinstance(error, StopIteration)
        calls = len(self.hook.calls)
        try:
            with self.session:
                if error is not None:
                    raise error
        except Exception as caught:
            assert (caught, clean) == (error, False)  # noqa: PT017
        assert self.hook.calls[calls:] == (["end"] if clean else ["exception"])

    @precondition(lambda self: self.closed)
    @rule()
    def use_after_close(self):
        calls = list(self.hook.calls)
        for use in (self.session.close, lambda: self.session.run("train"), self.session.request_stop):
            with pytest.raises(RuntimeError, match="already closed"):
                use()
        assert self.session.should_stop()
        assert self.hook.calls == calls

    @invariant()
    def promises_hold(self):
        if not hasattr(self, "session"):
            return
        calls = self.hook.calls
        assert calls.count("begin") == 1
        assert calls.count("created") == len(self.raws) == 1 + self.recoveries
        assert calls.count("end") <= 1
        assert all(raw.closed for raw in self.raws[:-1])
        assert self.raws[-1].closed == self.closed
        if self.stopped and not self.closed:
            assert self.session.should_stop()


Lifecycle.TestCase.settings = settings(stateful_step_count=25)
TestLifecycle = Lifecycle.TestCase
