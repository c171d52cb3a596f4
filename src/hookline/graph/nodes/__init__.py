"""Operations, tensors and their parts.

`nodes` are the kinds of operations, `ops` makes them from functions, `views` are parts of tensors, `spec` describes a
value before it is computed. `check` validates arguments on the device.
"""
