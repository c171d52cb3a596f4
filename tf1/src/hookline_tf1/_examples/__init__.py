"""The modules of `tensorflow.examples` that scripts import, under the names that `_tf/module_aliases.py` has."""
