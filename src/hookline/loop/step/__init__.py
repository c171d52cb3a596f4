"""From a plain train step to a graph.

`state_forms` and `leaf_types` read the user's state, `step` the function, `step_result` what it returns; `step_graph`
is the graph with the loop's variables. The optimizer's part of the state is in `optimizer_state` and
`optimizer_steps`.
"""
