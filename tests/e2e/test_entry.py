"""How a worker starts its executors: as it was started itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.e2e import libraries
from tests.plugins.fix_worker import ANEW, Workers, ended

MANAGE = """
import os
import sys
{setup}
from django.core.management import execute_from_command_line
execute_from_command_line({arguments})
"""


def flags_of(worker: Workers, *program: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a job that tells how its interpreter was started, as a program of its own."""
    job = libraries.tells_flags.register()
    process = worker("--until-idle", ready=False, program=program, env=env, conf=ANEW)
    assert process.wait() == 0, process.log
    return dict(ended(job)[0].result or {})


def test_interpreter_flags_reach_executors(worker: Workers, tmp_path: Path) -> None:
    script = tmp_path / "manage.py"
    script.write_text(MANAGE.format(setup="", arguments="sys.argv"))
    flags = flags_of(
        worker, sys.executable, "-u", "-B", "-b", "-E", "-s", "-P", "-W", "ignore::UserWarning", "-X", "utf8",
        str(script), env={"PYTHONUNBUFFERED": "", "PYTHONDONTWRITEBYTECODE": ""},
    )  # fmt: skip
    argv = flags["argv"]
    told = {name: flags[name] for name in ("dont_write_bytecode", "bytes_warning", "ignore_environment")}
    assert told == {"dont_write_bytecode": 1, "bytes_warning": 1, "ignore_environment": 1}
    assert (flags["no_user_site"], flags["safe_path"], flags["utf8_mode"], flags["isolated"]) == (1, 1, 1, 0)
    assert {"-u", "-Wignore::UserWarning"} <= set(argv)


def test_an_isolated_interpreter_starts_isolated_executors(worker: Workers, tmp_path: Path) -> None:
    script = tmp_path / "manage.py"
    root = str(Path(__file__).resolve().parent.parent.parent)
    script.write_text(MANAGE.format(setup=f"sys.path.insert(0, {root!r})", arguments="sys.argv"))
    assert flags_of(worker, sys.executable, "-I", str(script))["isolated"] == 1


def test_a_script_that_changes_the_directory_is_found_again(worker: Workers, tmp_path: Path) -> None:
    """Started by a relative path from somewhere else."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "manage.py").write_text(
        MANAGE.format(setup="os.chdir(os.path.dirname(os.path.abspath(__file__)))", arguments="sys.argv")
    )
    flags = flags_of(worker, sys.executable, "shop/manage.py", env={"PGJOBS_TEST_CWD": str(tmp_path)})
    assert str(tmp_path / "shop" / "manage.py") in flags["argv"]


def test_a_program_without_a_script_starts_executors_too(worker: Workers) -> None:
    """``python -c``: they are started by ``-m django`` with the same settings, which no variable names to them."""
    code = MANAGE.format(setup="", arguments="['manage.py', *sys.argv[1:]]")
    flags = flags_of(worker, sys.executable, "-c", code)
    argv = flags["argv"]
    assert argv[argv.index("-m") + 1] == "django"


PATCHED = """
import _thread
real = _thread.start_new_thread
def start_new_thread(*arguments):
    return real(*arguments)
start_new_thread.__module__ = "gevent.thread"
_thread.start_new_thread = start_new_thread
"""


def test_a_program_that_patches_threads_is_warned(worker: Workers, tmp_path: Path) -> None:
    """As ``gevent.monkey.patch_all()`` does; jobs run all the same."""
    script = tmp_path / "manage.py"
    script.write_text(MANAGE.format(setup=PATCHED, arguments="sys.argv"))
    flags_of(worker, sys.executable, str(script))
    assert worker.started[0].said("WARNING threads are patched by gevent")
    assert not worker.started[0].said("WARNING threads are patched by gevent", times=2)
