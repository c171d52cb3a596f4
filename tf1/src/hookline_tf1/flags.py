"""`tf.flags` and `tf.app.flags`: absl's flags with TF 1.x's argument names and implicit parsing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from absl import flags as absl_flags
from absl import logging as absl_logging

from hookline_tf1._machinery.namespaces import offered

__all__ = [
    "FLAGS",
    "DEFINE_alias",
    "DEFINE_bool",
    "DEFINE_boolean",
    "DEFINE_enum",
    "DEFINE_float",
    "DEFINE_integer",
    "DEFINE_list",
    "DEFINE_multi_enum",
    "DEFINE_multi_float",
    "DEFINE_multi_integer",
    "DEFINE_multi_string",
    "DEFINE_spaceseplist",
    "DEFINE_string",
    "DuplicateFlagError",
    "Error",
    "Flag",
    "FlagValues",
    "IllegalFlagValueError",
    "UnparsedFlagAccessError",
    "UnrecognizedFlagError",
    "ValidationError",
    "adopt_module_key_flags",
    "declare_key_flag",
    "mark_bool_flags_as_mutual_exclusive",
    "mark_flag_as_required",
    "mark_flags_as_mutual_exclusive",
    "mark_flags_as_required",
    "multi_flags_validator",
    "register_multi_flags_validator",
    "register_validator",
    "validator",
]

_RENAMED = {"flag_name": "name", "default_value": "default", "docstring": "help"}

# absl's flags for its log files; a script may define its own flags of these names.
_OF_ABSL = ("log_dir", "alsologtostderr", "logtostderr", "stderrthreshold")

# So that absl attributes flags to the script in errors and in --help.
absl_flags.disclaim_key_flags()


class _Flags:
    """The program's flags. The first access parses the command line, unless it was parsed before.

    References:
        `tf.app.flags.FLAGS`.
    """

    def _parse_flags(self, args: list[str] | None = None) -> bool:
        """Parses the command line, for scripts from before TF 1.5."""
        absl_flags.FLAGS(sys.argv[:1] + args if args is not None else sys.argv, known_only=True)
        return True

    def __call__(self, argv: list[str], known_only: bool = False) -> list[str]:
        return absl_flags.FLAGS(argv, known_only)

    def __getattr__(self, name: str) -> Any:
        if not absl_flags.FLAGS.is_parsed() and name in absl_flags.FLAGS:
            absl_flags.FLAGS(sys.argv)
        return getattr(absl_flags.FLAGS, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(absl_flags.FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(absl_flags.FLAGS, name)

    def __getitem__(self, name: str) -> Any:
        return absl_flags.FLAGS[name]

    def __contains__(self, name: str) -> bool:
        return name in absl_flags.FLAGS

    def __iter__(self) -> Any:
        return iter(absl_flags.FLAGS)

    def __len__(self) -> int:
        return len(absl_flags.FLAGS)

    def __dir__(self) -> list[str]:
        return dir(absl_flags.FLAGS)


def _with_old_names(define: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an absl function to also take its first arguments under TF 1.x's names."""

    @functools.wraps(define)
    def defined(*args: Any, **kwargs: Any) -> Any:
        given = {_RENAMED.get(name, name): value for name, value in kwargs.items()}
        name = args[0] if args else given.get("name")
        if name in _OF_ABSL and absl_flags.FLAGS.find_module_defining_flag(name) == absl_logging.__name__:
            delattr(absl_flags.FLAGS, name)
        return define(*args, **given)

    return defined


FLAGS = _Flags()
DEFINE_string = _with_old_names(absl_flags.DEFINE_string)
DEFINE_boolean = _with_old_names(absl_flags.DEFINE_boolean)
DEFINE_bool = DEFINE_boolean
DEFINE_float = _with_old_names(absl_flags.DEFINE_float)
DEFINE_integer = _with_old_names(absl_flags.DEFINE_integer)
DEFINE_enum = _with_old_names(absl_flags.DEFINE_enum)
DEFINE_list = _with_old_names(absl_flags.DEFINE_list)
DEFINE_spaceseplist = _with_old_names(absl_flags.DEFINE_spaceseplist)
DEFINE_multi_string = _with_old_names(absl_flags.DEFINE_multi_string)
DEFINE_multi_integer = _with_old_names(absl_flags.DEFINE_multi_integer)
DEFINE_multi_float = _with_old_names(absl_flags.DEFINE_multi_float)
DEFINE_multi_enum = _with_old_names(absl_flags.DEFINE_multi_enum)
DEFINE_alias = absl_flags.DEFINE_alias
mark_flag_as_required = absl_flags.mark_flag_as_required
mark_flags_as_required = absl_flags.mark_flags_as_required
mark_flags_as_mutual_exclusive = absl_flags.mark_flags_as_mutual_exclusive
mark_bool_flags_as_mutual_exclusive = absl_flags.mark_bool_flags_as_mutual_exclusive
register_validator = absl_flags.register_validator
register_multi_flags_validator = absl_flags.register_multi_flags_validator
validator = absl_flags.validator
multi_flags_validator = absl_flags.multi_flags_validator
declare_key_flag = absl_flags.declare_key_flag
adopt_module_key_flags = absl_flags.adopt_module_key_flags
FlagValues = absl_flags.FlagValues
Flag = absl_flags.Flag
Error = absl_flags.Error
DuplicateFlagError = absl_flags.DuplicateFlagError
IllegalFlagValueError = absl_flags.IllegalFlagValueError
UnparsedFlagAccessError = absl_flags.UnparsedFlagAccessError
UnrecognizedFlagError = absl_flags.UnrecognizedFlagError
ValidationError = absl_flags.ValidationError


__getattr__, __dir__ = offered("tf.flags", lambda: __all__)
