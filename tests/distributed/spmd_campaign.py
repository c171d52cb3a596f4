"""SPMD jobs of two processes that are killed repeatedly, and end with the bits of an uninterrupted one.

Run in the root of the repository as `python -m tests.distributed.spmd_campaign --jobs 20 --kills 10`. Each job is
started by the launcher, as with `--restart on-failure`. Each of its starts meets a mishap: a process is killed, stopped
or asked to end, at a point of the start, the compilation, a step, a save, a restore or the end, or at any time.
Everything but the moment of a mishap at the start or "at any time" follows from the seed and the number of the job.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.distributed.spmd_killed import AT_THE_END, number_of_start
from tests.reliability.crashing.points import LATEST

# The command, which remembers the processes that it has started.
from hookline.cli.launch_spmd import SpmdLaunchConfig, launch_spmd
from hookline.train import RecoveryPolicy

SCRIPT = Path(__file__).with_name("spmd_killed.py")
PROCESSES = 2
AIMS = {
    "start": ["start"],
    "any time": ["any time"],
    "compile": ["compile: tracing", "compile: amid", "compile: after"],
    "step": ["step: amid"],
    "save": [
        *("save: before", "save: amid", "manifest: before", "manifest: after", "commit: before", "commit: after"),
        *("state file: before", "removal: renamed", "sync: before"),
    ],
    "restore": ["restore: amid"],
    "end": [*AT_THE_END],
}
IN_THE_CHIEF = ("manifest", "commit", "state file", "removal", "sync", "lease's end")
SIGNALS = ["SIGKILL"] * 7 + ["SIGTERM"] * 2 + ["SIGSTOP"]


def plan_of(number, kills, seed):
    """Returns the job's construction and its mishaps."""
    draw = random.Random(f"{seed}, job {number}")
    # Each kind where there are enough: a start that restores nothing is the first, and those that end are the last.
    kinds = [kind for kind in AIMS if kind != "end"]
    first = draw.choice([kind for kind in kinds if kind != "restore"])
    others = draw.sample(kinds, len(kinds)) + draw.choices(kinds, k=kills)
    chosen = [first, *others[: max(kills - 3, 0)], "end", "end"][:kills]
    mishaps = []
    for kind in chosen:
        point = draw.choice(AIMS[kind])
        mishaps.append(
            {
                "point": point,
                "process": 0 if point.startswith(IN_THE_CHIEF) else draw.randrange(PROCESSES),
                "signal": "SIGKILL" if kind in ("start", "end") else draw.choice(SIGNALS),
                "arrival": draw.randint(1, min(LATEST.get(point, 1), 2)),
                "delay_secs": draw.uniform(0.0, {"start": 2.5, "any time": 5.0}.get(kind, 0.3)),
            }
        )
    return {"layout": ["whole", "split"][number % 2], "steps_per_run": [1, 4][number // 2 % 2], "mishaps": mishaps}


class Killer:
    """Kills a process of a job while it starts, if the plan requires it."""

    def __init__(self, folder, mishaps):
        self._folder, self._mishaps = folder, mishaps
        self._over, self._known = threading.Event(), set()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.wait(0.02):
            for pid in self._found() - self._known:
                self._known.add(pid)
                if address := _variable(pid, "HOOKLINE_COORDINATOR_ADDRESS"):
                    number = number_of_start(self._folder, address)
                    if number < len(self._mishaps):
                        self._meet(pid, number, self._mishaps[number])

    def _meet(self, pid, number, mishap):
        """Kills a process that has just begun, if it is the one."""
        path = self._folder / f"mishap-{number}"
        if mishap["point"] != "start" or path.exists():
            return
        if _variable(pid, "HOOKLINE_PROCESS_ID") == str(mishap["process"]):
            self._over.wait(mishap["delay_secs"])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                path.write_text("SIGKILL start\n")

    def _found(self):
        mine = str(self._folder)
        return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _variable(pid, "IN_STEP_CAMPAIGN") == mine}


def _variable(pid, name):
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [value for variable in variables for key, _, value in [variable.partition(b"=")] if key == name.encode()]
    return found[0].decode() if found else None


def run(folder, plan):
    """Runs a job to its end."""
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    os.environ["IN_STEP_CAMPAIGN"] = str(folder)
    policy = RecoveryPolicy(max_attempts=len(plan["mishaps"]) + 1, initial_backoff_secs=0.0)
    what = SpmdLaunchConfig((str(SCRIPT), str(folder)), PROCESSES, restarts=policy)
    with Killer(folder, plan["mishaps"]):
        asked = -1
        while (status := launch_spmd(what)) == 128 + signal.SIGTERM:
            # A process that leaves on a signal has not failed: a scheduler starts the job again.
            asked, before = _asked_to_end(folder), asked
            if asked == before:
                raise KeyboardInterrupt("The campaign was asked to end.")
    if status == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if status:
        raise AssertionError(f"it ended with status {status}")


def _asked_to_end(folder):
    """Returns how many mishaps were a SIGTERM."""
    return sum(path.read_text().startswith("SIGTERM") for path in folder.glob("mishap-*"))


def outcome(folder):
    """Returns the final state of each process, and the result of each step."""
    states = {(folder / f"ended-{process}").read_text() for process in range(PROCESSES)}
    steps = collections.defaultdict(set)
    for process in range(PROCESSES):
        for line in (folder / f"steps-{process}").read_text().splitlines():
            step, loss = line.split()
            steps[int(step)].add(loss)
    return states, dict(steps)


def check(folder, plan, expected):
    """Raises `AssertionError` unless the job has met all mishaps and ended with the bits of the other job."""
    left = [number for number in range(len(plan["mishaps"])) if not (folder / f"mishap-{number}").exists()]
    if left:
        raise AssertionError(f"mishaps {left} have not happened")
    states, steps = outcome(folder)
    wrong = [step for step in expected[1] if steps.get(step) != expected[1][step]]
    if wrong:
        raise AssertionError(f"from step {wrong[0]} on, the losses are {steps.get(wrong[0])}, not those left alone")
    if states != expected[0]:
        raise AssertionError("the states at the end are not that of the job left alone")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10, help="how many mishaps each job meets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this job and no other")
    parser.add_argument("--keep", type=Path, help="keep what a job that failed has written here")
    settings = parser.parse_args(words)
    failed, met, left_alone = [], collections.Counter(), {}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{scratch}/compiled"
        for number in range(settings.jobs) if settings.only is None else [settings.only]:
            plan, begun = plan_of(number, settings.kills, settings.seed), time.monotonic()
            kind = plan["layout"], plan["steps_per_run"]
            folder = Path(scratch) / f"job-{number}"
            try:
                if kind not in left_alone:
                    run(Path(scratch) / f"alone-{number}", {**plan, "mishaps": []})
                    left_alone[kind] = outcome(Path(scratch) / f"alone-{number}")
                run(folder, plan)
                check(folder, plan, left_alone[kind])
                found = "bit-equal"
            except AssertionError as error:
                failed.append(number)
                found = f"FAILED: {error}; repeat it with --only {number} --seed {settings.seed}"
                if settings.keep and folder.exists():
                    shutil.copytree(folder, settings.keep / folder.name, dirs_exist_ok=True)
            mishaps = [path.read_text().strip() for path in sorted(folder.glob("mishap-*"))]
            met.update(mishaps)
            secs = time.monotonic() - begun
            print(f"job {number}, {kind}: {found}, {len(mishaps)} mishaps, {secs:.0f} s", flush=True)
    print(f"{sum(met.values())} mishaps:", *(f"\n  {count:3} {where}" for where, count in sorted(met.items())))
    print(f"{len(failed)} of the jobs failed: {failed}" if failed else "All ended with the bits of one left alone.")
    missed = sum(count for where, count in met.items() if "did not come to" in where)
    if missed * 4 > sum(met.values()):
        print(f"FAILED: {missed} of the mishaps did not come to their points.")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
