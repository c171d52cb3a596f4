from __future__ import annotations

import hookline_tf1 as tf


def test_initializer_in_a_restored_session_of_a_tensorflow_script_is_logged(tmp_path, caplog):
    for last_step in (2, 4):
        with tf.Graph().as_default():
            train_op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
            init = tf.global_variables_initializer()
            hooks = [tf.train.StopAtStepHook(last_step=last_step)]
            with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as sess:
                sess.run(init)
                while not sess.should_stop():
                    sess.run(train_op)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [said.partition(" again")[0] for said in warnings] == ["This run initialises 'global_step'"]
