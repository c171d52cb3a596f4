"""Trains the graph of `digits.py` with a chief and workers, asynchronously, on parameter servers.

Run it with `hookline launch --workers 4 --servers 2 examples/digits_workers.py`. The workers start one after the other.
"""

import argparse
import math

from digits import build

import hookline as hl
from hookline.distributed import Cluster

K = 200


class SayWhenStarted(hl.train.SessionRunHook):
    """Prints the global step at which this worker starts: it comes after the waiting hook in the list."""

    said = False

    def before_run(self, run_context):
        if not self.said:
            print(f"starts at global step {run_context.session.global_step}")
            self.said = True


def main():
    parser = argparse.ArgumentParser(description="Trains on handwritten digits with several workers.")
    parser.add_argument("--steps", type=int, default=1000, help="train up to this global step")
    parser.add_argument("--logdir", default="runs/digits_workers", help="where checkpoints and summaries go")
    args = parser.parse_args()

    cluster = Cluster.from_environment()
    train_op, loss, final = build(args.steps, cluster.task_id)
    wait_until_step = int(K * math.log(cluster.task_id + 1))
    hooks = [hl.train.GlobalStepWaiterHook(wait_until_step), hl.train.StopAtStepHook(last_step=args.steps)]
    if cluster.is_chief:
        hooks += [final]
    else:
        print(f"waits for global step {wait_until_step}")
        hooks += [SayWhenStarted()]
    hooks += [hl.train.ProgressHook({"loss": loss})]

    local_runs = 0
    with hl.train.MonitoredTrainingSession(
        cluster, cluster.is_chief, args.logdir, hooks=hooks, save_checkpoint_secs=10
    ) as sess:
        while not sess.should_stop():
            sess.run(train_op)
            local_runs += 1

    print(f"ran {local_runs} times; a run at the end may have been refused")
    if cluster.is_chief:
        print(f"Curves: tensorboard --logdir {args.logdir}")
        print(f"test accuracy: {final.final_ops_values:.2f}")


if __name__ == "__main__":
    main()
