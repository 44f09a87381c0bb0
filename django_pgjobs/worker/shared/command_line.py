"""The command that starts this program again, for its executors or after a change: same interpreter, flags and
entry."""

from __future__ import annotations

import io
import os
import sys

LETTERS = {
    "debug": "d",
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_site": "S",
    "verbose": "v",
    "bytes_warning": "b",
    "quiet": "q",
}
"""Flags that may be given several times. ``-i`` is left out: an executor has no user to be interactive with."""

ALONE = {"ignore_environment": "-E", "no_user_site": "-s", "safe_path": "-P"}
"""Flags that ``-I`` stands for."""

ANY_PROJECT = ("-m", "django")


def entry_point(*, from_command_line: bool) -> tuple[str, ...]:
    """Return the command line to begin with: interpreter, its flags, and script or ``-m`` module.

    A script is named by its absolute path, for it may have changed the working directory. A worker that has none,
    started by ``call_command`` or ``python -c``, is started again by ``-m django``, which needs ``--settings``.
    """
    return (sys.executable, *interpreter_flags(), *_program(from_command_line))


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter, those that it got from its environment included."""
    flags = [f"-{letter * getattr(sys.flags, name)}" for name, letter in LETTERS.items() if getattr(sys.flags, name)]
    flags += ["-I"] if sys.flags.isolated else [flag for name, flag in ALONE.items() if getattr(sys.flags, name)]
    # ``sys.flags`` does not know -u: it leaves the text layer without a buffer beneath it.
    flags += ["-u"] if isinstance(getattr(sys.__stdout__, "buffer", None), io.RawIOBase) else []
    flags += [f"-W{option}" for option in sys.warnoptions]
    return flags + [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]


def _program(from_command_line: bool) -> tuple[str, ...]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path = getattr(main, "__file__", None)
    if from_command_line and spec is not None and spec.name != "__main__":
        return ("-m", spec.parent if spec.name.endswith(".__main__") and spec.parent else spec.name)
    if from_command_line and path:
        # With a spec it is the __main__.py of a directory or an archive, which is what was run.
        return (os.path.abspath(path if spec is None else os.path.dirname(path)),)
    return ANY_PROJECT
