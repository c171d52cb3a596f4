"""`hookline replay` with a script of TensorFlow 1.x, unchanged."""

from __future__ import annotations

import runpy
import sys
import textwrap

from tests.loop.replayed import fingerprint

import hookline_tf1 as tf
from hookline.cli import main

SCRIPT = """
    import sys

    import numpy as np

    import hookline_tf1 as tf

    data = np.random.RandomState(0).randn(400, 3).astype("float32")
    x = tf.placeholder(tf.float32, [None, 3])
    w = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, axis=1) - tf.reduce_sum(x, axis=1)), name="loss")
    global_step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)
    tf.summary.scalar("loss", loss)
    hooks = [tf.train.StopAtStepHook(last_step=40), tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10)]
    with tf.train.MonitoredTrainingSession(checkpoint_dir=sys.argv[1], save_checkpoint_steps=10, hooks=hooks) as sess:
        while not sess.should_stop():
            at = sess.run(global_step, {x: data[:1]}) * 8
            sess.run([train_op, loss], {x: data[at : at + 8]})
    print("the script ends")
"""


def test_script_of_tensorflow_is_replayed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["script.py", "run"])
    with tf.Graph().as_default():
        runpy.run_path("script.py", run_name="__main__")
    before = fingerprint("run")
    capsys.readouterr()
    command = ["--steps", "22:33", "--every", "4", "--fetch", "loss", "--fetch", "w", "script.py", "run"]
    with tf.Graph().as_default():
        assert main(["replay", "run", *command]) == 0
    out, err = capsys.readouterr()
    header, *rows, proof = out.splitlines()
    assert (header.split(), proof) == (["step", "loss", "|w|"], "The same bits as the run at step 30.")
    assert [row.split()[0] for row in rows] == ["24", "28", "32"]
    assert "the script ends" not in err
    assert fingerprint("run") == before
