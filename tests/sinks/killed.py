"""Trains to step 11 with both files and is killed there, after the checkpoint of step 6; the folder is its argument."""

import os
import signal
import sys
import time

from tests.sinks.conftest import read_csv, train

import hookline as hl
from hookline.sinks import Csv, JsonLines


class Kill(hl.train.SessionRunHook):
    trigger = hl.train.at_steps(11)

    def on_trigger(self, firing):
        firing.context.deliver_pending()  # The requested points have been written to the sinks.
        table, saved = os.path.join(sys.argv[1], "scalars.csv"), os.path.join(sys.argv[1], "model.ckpt-6")
        while max(read_csv(table), default=(0,))[0] < 9 or hl.train.latest_checkpoint(sys.argv[1]) != saved:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


train(sys.argv[1], 20, [Csv(), JsonLines()], hooks=[Kill()])
