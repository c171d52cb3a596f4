"""SPMD processes, simulated in virtual time with the real protocol: seeded, without threads and without a clock."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict

# The protocol itself: users see only that all processes do the same.
from hookline.coordination.agreement import FAILURE, Delete, Get, Member, Set, WaitUntilApplied

MICRO, WAIT = "micro", "wait"
"""A main thread may be interrupted here; it waits until something changes."""


class Broken(AssertionError):
    """The protocol has broken its promise."""


class Simulated(Member):
    """A member whose main thread may run between any two statements of its listener that touch what both use."""

    def __init__(self, index, count, world):
        self._limit, self._started = math.inf, 0
        self.world, self.in_listener = world, False
        super().__init__(index, count)

    @property
    def limit(self):
        return self._limit

    @limit.setter
    def limit(self, limit):
        self._limit = limit
        self._interrupt()

    @property
    def started(self):
        started = self._started
        self._interrupt()
        return started

    @started.setter
    def started(self, started):
        self._started = started

    def _interrupt(self):
        if self.in_listener:
            self.in_listener = False
            self.world.processes[self.index].run_on(self.world.random.randrange(4))
            self.in_listener = True


class World:
    """Simulates all processes, the key-value store, and the time.

    Args:
        seed: Everything random follows from it.
        kind: The class of the members.
    """

    def __init__(self, seed, kind=Simulated):
        self.random = random.Random(seed)
        self.now, self._events, self._order = 0.0, [], itertools.count()
        self.store, self._waiting = {}, defaultdict(list)
        self.count = self.random.randint(2, 5)
        self.is_coupled = self.random.random() < 0.5
        self.ahead = self.random.choice([1, 4, 16])
        self.last = self.random.randint(1, 40)
        # How it ends: all ask for a stop after a run, one does, or all end there without a word.
        self.end = self.random.choice(["all", "one", "silent"])
        self.stopper = self.random.randrange(self.count)
        self.failing = self.random.randrange(self.count) if self.random.random() < 0.15 else None
        self.fails_at = self.random.randint(0, self.last)
        self.slowness = [self.random.choice([0.2, 1.0, 5.0]) for _ in range(self.count)]
        self.boundaries = []
        self.processes = []
        self.processes += [Process(self, index, kind(index, self.count, self)) for index in range(self.count)]

    def at(self, secs, function):
        heapq.heappush(self._events, (self.now + secs, next(self._order), function))

    def latency(self):
        """Mostly short, now and then very long."""
        return self.random.expovariate(2.0) if self.random.random() < 0.9 else self.random.uniform(5, 60)

    def run(self):
        for process in self.processes:
            process.start()
            for _ in range(self.random.randrange(3)):
                self.at(self.random.uniform(0, 60), process.propose_note)
        while self._events:
            self.now, _, function = heapq.heappop(self._events)
            function()
        return self.check()

    def end_all(self):
        """Ends all processes: one of them has died."""
        for process in self.processes:
            process.is_gone = process.has_left = True
            process.is_listening = False

    # The key-value store ----------------------------------------------------------------------------------------

    def do(self, process, request, then):
        if isinstance(request, WaitUntilApplied):
            process.when_taken = then
            process.changed()
            return
        self.at(self.latency(), lambda: self._on_board(request, then))

    def _on_board(self, request, then):
        def answer(found):
            self.at(self.latency(), lambda: then(found))

        if isinstance(request, Get):
            if request.key in self.store:
                answer(self.store[request.key])
            else:
                self._waiting[request.key].append(answer)
        elif isinstance(request, Set):
            is_first = request.key not in self.store
            if is_first:
                self.store[request.key] = request.text
                for waiting in self._waiting.pop(request.key, ()):
                    waiting(request.text)
            answer(is_first)
        elif isinstance(request, Delete):
            for key in [key for key in self.store if key.startswith(request.prefix)]:
                del self.store[key]
            answer(None)

    # What must hold ---------------------------------------------------------------------------------------------

    def check(self):
        for process in self.processes:
            if not process.has_left:
                raise Broken(f"process {process.member.index} hangs after run {process.member.started}")
            if process.is_listening:
                raise Broken(f"the listener of process {process.member.index} hangs")
        if len(self.store) > 4 * (self.count + 2):
            raise Broken(f"the store has {len(self.store)} keys")
        if self.failing is None and self.end != "silent":
            first, *others = self.processes
            for other in others:
                if other.taken != first.taken:
                    raise Broken(f"other decisions: {first.taken} and {other.taken}")
                if other.made != first.made:
                    raise Broken(f"one process has made {first.made} runs, another {other.made}")
            if self.end == "all" and first.made != self.last:
                raise Broken(f"all asked for a stop after {self.last}, and it came after {first.made}")
        return self


class Process:
    """One process: a main thread and a listener."""

    def __init__(self, world, index, member):
        self.world, self.member = world, member
        self.taken, self.made, self.completed = [], 0, 0
        self.has_left = self.has_died = False
        self.is_listening, self.when_taken = True, None
        self._token, self._state = 0, None
        self.is_gone = False

    def start(self):
        self._main, self._listener = self._runs(), self.member.listen()
        self._listen(None)
        self._go_on()

    # The listener -----------------------------------------------------------------------------------------------

    def _listen(self, found):
        if self.is_gone:
            return
        self.member.in_listener = True
        try:
            request = self._listener.send(found)
        except StopIteration:
            self.is_listening = False
            return
        finally:
            self.member.in_listener = False
            self.changed()
        decision = self.member.decision
        if decision is not None and self.made > decision.boundary:
            raise Broken(f"run {self.made} was started, and the boundary is {decision.boundary}")
        if isinstance(request, Set) and request.key.endswith("/decision"):
            self.world.boundaries.append(request)
        self.world.do(self, request, self._listen)

    def changed(self):
        """Wakes all that wait for a change."""
        if self._state == WAIT:
            self.world.at(self.world.random.uniform(0, 0.1), self._wake(self._token))
        if self.when_taken is not None and self.member.is_decision_applied:
            then, self.when_taken = self.when_taken, None
            self.world.at(self.world.random.uniform(0, 0.1), lambda: then(None))

    def _wake(self, token):
        return lambda: self._go_on() if self._token == token and self._state == WAIT else None

    # The main thread --------------------------------------------------------------------------------------------

    def run_on(self, statements):
        """Runs some statements of the main thread, as far as they need no lock."""
        while statements and self._state == MICRO:
            statements -= 1
            self._advance()

    def _go_on(self):
        self._advance()

    def _advance(self):
        if self.is_gone:
            return
        self._token += 1
        token = self._token
        try:
            self._state = next(self._main)
        except StopIteration:
            self._state, self.has_left = None, True
            self.changed()
            return
        resume = lambda: self._go_on() if self._token == token else None  # noqa: E731
        if self._state == MICRO:
            # Now and then another thread has the processor in between.
            self.world.at(self.world.random.uniform(0, self.world.random.choice([0.01, 0.01, 3.0])), resume)
        elif self._state != WAIT:
            self.world.at(self._state, resume)

    def _runs(self):
        member, world = self.member, self.world
        while True:
            if world.failing == member.index and self.made == world.fails_at:
                yield from self._leave(FAILURE)
                return
            if world.end == "silent" and self.made == world.last:
                break
            yield MICRO
            member.started += 1
            yield MICRO
            may_run = member.started <= member.limit
            yield MICRO
            if not may_run:
                yield 0.0  # From here on it holds the lock.
                member.undo_start()
                goes_on, decision = member.try_start()
                while not goes_on:
                    yield WAIT
                    goes_on, decision = member.try_start()
                self.changed()
                if decision is not None:
                    self.taken.append((decision.boundary, decision.proposals))
                    kinds = {kind for _, kind, _ in decision.proposals}
                    if FAILURE in kinds or "stop" in kinds:
                        break
                    continue
            yield from self._run()
            if self.has_died:
                return
        yield from self._leave()

    def _run(self):
        member, world = self.member, self.world
        self.made += 1
        if self.made != member.started:
            raise Broken(f"run {self.made} is counted as {member.started}")
        decision = member.decision
        if decision is not None and self.made > decision.boundary:
            raise Broken(f"run {self.made} is past the boundary {decision.boundary}")
        yield world.random.expovariate(1 / world.slowness[member.index])
        while world.is_coupled and any(
            other.made < self.made - world.ahead and not other.has_left for other in world.processes
        ):
            yield 0.5
        if world.is_coupled and any(other.has_died and other.made < self.made for other in world.processes):
            yield from self._leave(FAILURE)  # Its part of an exchange has not come.
            self.has_died = True
            return
        asks = world.end == "all" or (world.end == "one" and member.index == world.stopper)
        if self.made == world.last and asks:
            yield from self._propose("stop", from_main_thread=True)

    def _propose(self, kind, *, from_main_thread):
        request = self.member.add_proposal(kind, None, from_main_thread=from_main_thread)
        if request is not None:
            done = []
            self.world.do(self, request, done.append)
            while not done:  # A call of the service blocks its thread.
                yield 0.2

    def propose_note(self):
        """Proposes something from another thread."""
        if not self.has_left and not self.has_died and not self.member.is_closing:
            request = self.member.add_proposal("note", None)
            self.changed()
            if request is not None:
                self.world.do(self, request, lambda found: None)

    def _leave(self, why=None):
        if why is not None:
            yield from self._propose(why, from_main_thread=True)
        request = self.member.leave()
        self.changed()
        if request is not None:
            self.world.do(self, request, lambda found: None)
        since = self.world.now
        while self.is_listening and (why is None or self.world.now < since + 100):
            yield 0.5
        if why is not None:
            self.has_died = True
            self.is_listening = False
            self.world.at(300, self.world.end_all)  # As JAX does, which misses its heartbeat.


def run(seeds, kind=Simulated):
    """Runs schedules, and returns how many rounds there were in all."""
    rounds = 0
    for seed in seeds:
        try:
            rounds += len(World(seed, kind).run().boundaries)
        except Broken as error:
            raise Broken(f"seed {seed}: {error}") from None
    return rounds
