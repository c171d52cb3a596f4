"""The documented signatures: the order, the names and the defaults that users of TF 1.x rely on."""

from __future__ import annotations

import enum
import functools
import inspect
import math

import pytest

import hookline


class Sentinel(enum.Enum):
    USE_DEFAULT = enum.auto()


# As in TF 2.21 (`tf.compat.v1`), without the arguments that hookline does not take, and those that it adds. After a `*`
# are arguments by name only: TF has, or had, another argument at their position.
DOCUMENTED = {
    # Hooks
    "train.SessionRunHook.after_create_session": "(session, coord)",
    "train.SessionRunHook.before_run": "(run_context)",
    "train.SessionRunHook.after_run": "(run_context, run_values)",
    "train.SessionRunHook.end": "(session)",
    "train.SessionRunArgs": "(fetches, feed_dict=None, options=None)",
    "train.SessionRunContext": "(original_args, session)",
    "train.SessionRunValues": "(results, options, run_metadata)",
    "train.StopAtStepHook": "(num_steps=None, last_step=None)",
    "train.GlobalStepWaiterHook": "(wait_until_step, timeout_secs=None, poll_secs=0.2)",
    "train.SummarySaverHook":
        "(save_steps=None, save_secs=None, output_dir=None, summary_writer=None, scaffold=None, summary_op=None)",
    "train.LoggingTensorHook":
        "(tensors, every_n_iter=None, every_n_secs=None, at_end=False, formatter=None)",
    "train.CheckpointSaverHook":
        "(checkpoint_dir, save_secs=None, save_steps=None, saver=None, checkpoint_basename='model.ckpt',"
        " scaffold=None, listeners=None, save_graph_def=True)",
    "train.CheckpointSaverListener.before_save": "(session, global_step_value)",
    "train.CheckpointSaverListener.after_save": "(session, global_step_value)",
    "train.CheckpointSaverListener.end": "(session, global_step_value)",
    "train.ProfilerHook": "(save_steps=None, save_secs=None, output_dir='', show_dataflow=True, show_memory=False)",
    "train.StepCounterHook": "(every_n_steps=100, every_n_secs=None, output_dir=None, summary_writer=None)",
    "train.NanTensorHook": "(loss_tensor, fail_on_nan_loss=True)",
    "train.FinalOpsHook": "(final_ops, final_ops_feed_dict=None)",
    "train.FeedFnHook": "(feed_fn)",
    "train.SecondOrStepTimer": "(every_secs=None, every_steps=None)",
    "train.SecondOrStepTimer.should_trigger_for_step": "(step)",
    "train.SecondOrStepTimer.update_last_triggered_step": "(step)",
    # Evaluation, as in tf.contrib.training of TF 1.15
    "train.StopAfterNEvalsHook": "(num_evals, log_progress=True)",
    "train.SummaryAtEndHook": "(log_dir=None, summary_writer=None, summary_op=None, feed_dict=None)",
    "train.evaluate_once":
        "(checkpoint_path, master='', scaffold=None, eval_ops=None, feed_dict=None, final_ops=None,"
        " final_ops_feed_dict=None, hooks=None, config=None)",
    "train.evaluate_repeatedly":
        "(checkpoint_dir, master='', scaffold=None, eval_ops=None, feed_dict=None, final_ops=None,"
        " final_ops_feed_dict=None, eval_interval_secs=60, hooks=None, config=None, max_number_of_evaluations=None,"
        " timeout=None, timeout_fn=None)",
    "train.wait_for_new_checkpoint": "(checkpoint_dir, last_checkpoint=None, seconds_to_sleep=1, timeout=None)",
    # Monitored sessions
    "train.MonitoredSession": "(session_creator=None, hooks=None, stop_grace_period_secs=120)",
    "train.MonitoredSession.run": "(fetches, feed_dict=None, options=None, run_metadata=None)",
    "train.MonitoredSession.run_step_fn": "(step_fn)",
    "train.SingularMonitoredSession":
        "(hooks=None, scaffold=None, master='', config=None, checkpoint_dir=None, stop_grace_period_secs=120,"
        " checkpoint_filename_with_path=None)",
    "train.SingularMonitoredSession.run": "(fetches, feed_dict=None, options=None, run_metadata=None)",
    "train.SingularMonitoredSession.run_step_fn": "(step_fn)",
    "train.MonitoredTrainingSession":
        "(master='', is_chief=True, checkpoint_dir=None, scaffold=None, hooks=None, chief_only_hooks=None,"
        " save_checkpoint_secs=USE_DEFAULT, save_summaries_steps=USE_DEFAULT, save_summaries_secs=USE_DEFAULT,"
        " config=None, stop_grace_period_secs=120, log_step_count_steps=100, max_wait_secs=7200,"
        " save_checkpoint_steps=USE_DEFAULT, summary_dir=None, save_graph_def=True)",
    "train.Scaffold":
        "(init_op=None, init_feed_dict=None, init_fn=None, ready_op=None, ready_for_local_init_op=None,"
        " local_init_op=None, summary_op=None, saver=None, copy_from_scaffold=None, local_init_feed_dict=None)",
    "train.Scaffold.get_or_default": "(arg_name, collection_key, default_constructor)",
    "train.ChiefSessionCreator":
        "(scaffold=None, master='', config=None, checkpoint_dir=None, checkpoint_filename_with_path=None)",
    "train.WorkerSessionCreator": "(scaffold=None, master='', config=None, max_wait_secs=1800)",
    "train.SessionManager":
        "(local_init_op=None, ready_op=None, ready_for_local_init_op=None, graph=None, recovery_wait_secs=30,"
        " local_init_run_options=None, local_init_feed_dict=None)",
    "train.SessionManager.prepare_session":
        "(master, init_op=None, saver=None, checkpoint_dir=None, checkpoint_filename_with_path=None,"
        " wait_for_checkpoint=False, max_wait_secs=7200, config=None, init_feed_dict=None, init_fn=None)",
    "train.SessionManager.recover_session":
        "(master, saver=None, checkpoint_dir=None, checkpoint_filename_with_path=None, wait_for_checkpoint=False,"
        " max_wait_secs=7200, config=None)",
    "train.SessionManager.wait_for_session": "(master, config=None, max_wait_secs=inf)",
    # Threads
    "train.Coordinator": "(clean_stop_exception_types=None)",
    "train.Coordinator.request_stop": "(ex=None)",
    "train.Coordinator.wait_for_stop": "(timeout=None)",
    "train.Coordinator.register_thread": "(thread)",
    "train.Coordinator.join": "(threads=None, stop_grace_period_secs=120, ignore_live_threads=False)",
    "train.LooperThread": "(coord, timer_interval_secs, target=None, args=None, kwargs=None)",
    "train.LooperThread.loop": "(coord, timer_interval_secs, target, args=None, kwargs=None)",
    # Checkpoints. Of the many arguments of a Saver all but the first are given by name.
    "train.Saver":
        "(var_list=None, *, reshape=False, max_to_keep=5, keep_checkpoint_every_n_hours=10000.0, name=None,"
        " allow_empty=False, pad_step_number=False)",
    "train.Saver.save": "(sess, save_path, global_step=None, latest_filename=None)",
    "train.Saver.restore": "(sess, save_path)",
    "train.Saver.recover_last_checkpoints": "(checkpoint_paths)",
    "train.latest_checkpoint": "(checkpoint_dir, latest_filename=None)",
    "train.get_checkpoint_state": "(checkpoint_dir, latest_filename=None)",
    "train.checkpoint_exists": "(checkpoint_prefix)",
    "train.checkpoints_iterator":
        "(checkpoint_dir, min_interval_secs=0, timeout=None, timeout_fn=None, *, poll_secs=1.0)",
    "train.list_variables": "(ckpt_dir_or_file)",
    "train.load_variable": "(ckpt_dir_or_file, name)",
    "train.init_from_checkpoint": "(ckpt_dir_or_file, assignment_map)",
    "train.warm_start":
        "(ckpt_to_initialize_from, vars_to_warm_start='.*', var_name_to_vocab_info=None,"
        " var_name_to_prev_var_name=None)",
    # As in tf.contrib.framework of TF 1.15
    "train.assign_from_checkpoint": "(model_path, var_list, ignore_missing_vars=False)",
    "train.assign_from_checkpoint_fn":
        "(model_path, var_list, ignore_missing_vars=False, reshape_variables=False)",
    # The global step, averages and optimizers. An Optimizer is made of an Optax transformation.
    "train.create_global_step": "(graph=None)",
    "train.get_global_step": "(graph=None)",
    "train.get_or_create_global_step": "(graph=None)",
    "train.assert_global_step": "(global_step_tensor)",
    "train.global_step": "(sess, global_step_tensor)",
    "train.ExponentialMovingAverage":
        "(decay, num_updates=None, zero_debias=False, name='ExponentialMovingAverage')",
    "train.ExponentialMovingAverage.apply": "(var_list=None)",
    "train.ExponentialMovingAverage.average": "(var)",
    "train.ExponentialMovingAverage.average_name": "(var)",
    "train.ExponentialMovingAverage.variables_to_restore": "(moving_avg_variables=None)",
    "train.Optimizer": "(transformation, name='optimizer')",
    "train.Optimizer.minimize": "(loss, global_step=None, var_list=None, *, name=None)",
    "train.Optimizer.compute_gradients": "(loss, var_list=None)",
    "train.Optimizer.apply_gradients": "(grads_and_vars, global_step=None, name=None)",
    # Sessions
    "Session": "(target='', graph=None, config=None)",
    "Session.run": "(fetches, feed_dict=None, options=None, run_metadata=None)",
    "Session.make_callable": "(fetches, feed_list=None, accept_options=False)",
    "RunOptions": "(trace_level=0, output_partition_graphs=False, debug_tensor_watches=(), last_step=None)",
    "errors.OpError": "(node_def, op, message)",
    "errors.AbortedError": "(node_def, op, message)",
    # Graphs
    "Graph.as_graph_element": "(obj)",
    "Graph.add_to_collection": "(name, value)",
    "Graph.control_dependencies": "(control_inputs)",
    "Graph.get_collection": "(name, scope=None)",
    "Graph.get_collection_ref": "(name)",
    "Graph.get_operation_by_name": "(name)",
    "Graph.get_tensor_by_name": "(name)",
    "Graph.name_scope": "(name)",
    "Graph.unique_name": "(name)",
    "add_to_collection": "(name, value)",
    "get_collection": "(key, scope=None)",
    "name_scope": "(name)",
    "control_dependencies": "(control_inputs)",
    # Their elements. The second argument of a Variable is its name.
    "Variable": "(initial_value, name=None, trainable=True, collections=None, *, dtype=None)",
    "Variable.assign": "(value)",
    "Variable.assign_add": "(delta)",
    "Variable.assign_sub": "(delta)",
    "constant": "(value, dtype=None, shape=None, name='Const')",
    "placeholder": "(dtype, shape=None, name=None)",
    "group": "(*inputs, name=None)",
    "no_op": "(name=None)",
    "gradients": "(ys, xs, *, name='gradients')",
    "variables_initializer": "(var_list, name='init')",
    "report_uninitialized_variables": "(var_list=None)",
    # Summaries
    "summary.scalar": "(name, tensor, collections=None)",
    "summary.histogram": "(name, values, collections=None)",
    "summary.image": "(name, tensor, max_outputs=3, collections=None)",
    "summary.audio": "(name, tensor, sample_rate, max_outputs=3, collections=None)",
    "summary.text": "(name, tensor, collections=None)",
    "summary.merge": "(inputs, collections=None, name=None)",
    "summary.merge_all": "(key='summaries', scope=None, name=None)",
    "summary.FileWriter":
        "(logdir, graph=None, max_queue=10, flush_secs=120, graph_def=None, filename_suffix=None, session=None)",
    "summary.FileWriter.add_event": "(event)",
    "summary.FileWriter.add_graph": "(graph, global_step=None)",
    "summary.FileWriter.add_run_metadata": "(run_metadata, tag, global_step=None)",
    "summary.FileWriter.add_session_log": "(session_log, global_step=None)",
    "summary.FileWriter.add_summary": "(summary, global_step=None)",
    "summary.FileWriterCache.get": "(logdir)",
}  # fmt: skip

WITHOUT_ARGUMENTS = """
    train.SessionRunHook train.SessionRunHook.begin train.SessionRunContext.request_stop train.CheckpointSaverListener
    train.CheckpointSaverListener.begin train.SecondOrStepTimer.last_triggered_step train.SecondOrStepTimer.reset
    train.NeverTriggerTimer train.get_or_create_eval_step train.MonitoredSession.should_stop
    train.MonitoredSession.close train.SingularMonitoredSession.should_stop train.SingularMonitoredSession.raw_session
    train.SingularMonitoredSession.close train.Scaffold.finalize train.Scaffold.default_local_init_op
    train.SessionCreator.create_session train.ChiefSessionCreator.create_session
    train.WorkerSessionCreator.create_session train.Coordinator.should_stop train.Coordinator.clear_stop
    train.Coordinator.stop_on_exception train.Coordinator.raise_requested_exception train.LooperThread.start_loop
    train.LooperThread.run_loop train.LooperThread.stop_loop Session.close Graph Graph.as_default Graph.finalize
    Graph.get_operations get_default_graph reset_default_graph Variable.initialized_value Variable.read_value
    global_variables local_variables trainable_variables global_variables_initializer local_variables_initializer
    summary.FileWriter.close summary.FileWriter.flush summary.FileWriter.get_logdir summary.FileWriter.reopen
    summary.FileWriterCache.clear
"""
DOCUMENTED |= dict.fromkeys(WITHOUT_ARGUMENTS.split(), "()")


def parameters(function):
    found = list(inspect.signature(function).parameters.values())
    return found[1:] if found and found[0].name == "self" else found


def described(parameter):
    """Returns a parameter as the table writes it: its name, and its default if it has one."""
    name, default = str(parameter.replace(annotation=parameter.empty, default=parameter.empty)), parameter.default
    if default is parameter.empty:
        return name
    return f"{name}={default.name if isinstance(default, enum.Enum) else repr(default)}"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signature_is_the_documented_one_plus_trailing_or_keyword_arguments(name):
    names = {"USE_DEFAULT": Sentinel.USE_DEFAULT, "inf": math.inf}
    documented = parameters(eval(f"lambda {DOCUMENTED[name][1:-1]}: None", names))
    ours = parameters(functools.reduce(getattr, name.split("."), hookline))

    by_place = [described(p) for p in documented if p.kind is not p.KEYWORD_ONLY]
    assert [described(p) for p in ours if p.kind is not p.KEYWORD_ONLY][: len(by_place)] == by_place

    known = {p.name for p in documented}
    by_name = {described(p) for p in documented if p.kind is p.KEYWORD_ONLY}
    assert {described(p) for p in ours if p.kind is p.KEYWORD_ONLY and p.name in known} == by_name

    added = [p for p in ours if p.name not in known]
    assert [p.name for p in added if p.default is p.empty and p.kind is not p.VAR_KEYWORD] == []
