"""The device's part of a run: one function, traced and compiled by JAX.

`program` is that function, `trace` evaluates its operations while JAX traces it, `tape` goes back through them for
gradients, `step_loop` makes several steps of one. `program_cache` and `shared_jit` see that few are compiled.
"""
