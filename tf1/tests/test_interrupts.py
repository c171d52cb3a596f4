"""Ctrl-C while hookline_tf1 is imported, at a moment at which Python drops exceptions."""

from __future__ import annotations

import signal

from tests.test_interrupts import ended


def test_ctrl_c_during_the_import_ends_the_script_after_it():
    done = ended("import hookline_tf1", "hookline_tf1._tf.array_ops")
    assert (done.returncode, done.stdout) == (-signal.SIGINT, ""), done.stderr
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "Exception ignored" not in done.stderr
