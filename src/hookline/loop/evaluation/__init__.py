"""Evaluates on other data during training, and acts on the results.

`evaluate` has the hook, `evaluation` one pass over the batches, `eval_step` the evaluation of a batch and the totals,
`eval_result` the result for a user function, `early_stopping` the stop without improvement.
"""
