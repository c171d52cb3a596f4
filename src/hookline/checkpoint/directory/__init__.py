"""What lies in a directory of checkpoints, and who may write there.

`layout` knows its names, `manifest` describes one checkpoint, `leaves` compares that with variables, `state_file` lists
all, `schema` checks both. `lease` admits one writer; `owner_file` says which process that is.
"""
