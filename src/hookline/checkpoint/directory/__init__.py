"""The files in a directory of checkpoints, and its only writer.

`layout` knows the names, `manifest` describes one checkpoint, `leaves` compares it with variables, `state_file` lists
all, `schema` checks both files. `lease` admits one writer, and `owner_file` names its process.
"""
