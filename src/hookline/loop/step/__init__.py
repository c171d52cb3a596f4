"""Turns a plain train step into a graph.

`state_forms` and `leaf_types` read the user's state, `step` the function, `step_result` its result; `step_graph` builds
the graph with the loop's variables. `optimizer_state`, `optimizer_steps` and `hyperparameters` read the optimizer's
part of the state.
"""
