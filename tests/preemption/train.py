"""A short training that writes down each of its steps."""

from __future__ import annotations

import threading

import hookline as hl


def main():
    train_op = hl.train.get_or_create_global_step().assign_add(1)
    with (
        open("steps", "a", encoding="ascii", buffering=1) as steps,
        hl.train.MonitoredTrainingSession(
            checkpoint_dir="run",
            hooks=[hl.train.StopAtStepHook(last_step=150)],
            save_checkpoint_steps=10**9,
            preemption=hl.train.PreemptionOptions(timeout_secs=100),
        ) as sess,
    ):
        while not sess.should_stop():
            steps.write(f"{sess.run(train_op)}\n")
            threading.Event().wait(0.01)


if __name__ == "__main__":
    main()
