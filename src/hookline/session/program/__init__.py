"""The device program of a run: one function, traced and compiled by JAX.

`program` is that function, `trace` evaluates its operations while JAX traces it, `tape` runs backward through them for
gradients, `byproducts` keeps hooks' fetches from changing the rounding, `step_loop` makes several steps of one.
`program_cache` and `shared_jit` share programs, so that few are compiled; `compilation_log` logs why.
"""
