"""Plans runs: from a request to a plan, before anything is traced.

`fetches` and `feeds` parse the arguments of a run, and `request` combines them. `plan` prunes the graph and finds the
version of a variable that each read sees; `variable_roles` sorts variables by how the program uses them.
`result_readers` read a run's results, `source_positions` its batches, and `plan_cache` keeps plans.
"""
