"""Evaluations: of a step over batches, while a training goes on, and what follows from them.

`evaluate` is the hook, `evaluation` one pass over the batches, `eval_step` the graph of its step, `eval_result` what it
gives, `early_stopping` the end of a training that does not get better.
"""
