"""A library in an executor that raises exceptions in job threads while they run no job's code, until the test ends it.

It looks where a thread is and strikes at a random instant after that, so some strikes meet the next job's code.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time

from django_pgjobs import Backoff, job
from django_pgjobs.worker.executor.interrupts import Door
from django_pgjobs.worker.executor.run_queue import Buffers
from tests.e2e import stage


class Stray(BaseException):
    """What no ``except Exception`` catches."""


KINDS: list[type[BaseException]] = [Stray, SystemExit, KeyboardInterrupt, ValueError, TimeoutError]


@job(max_attempts=50, backoff=Backoff(0), timeout=None)
def returns(number: int) -> int:
    return number


@job(max_attempts=50, backoff=Backoff(0), timeout=None)
def reads(number: int) -> int:
    from django_pgjobs.models import Job

    Job.objects.filter(pk=number).first()
    return number


def lie_in_wait() -> None:
    """Begin, in a thread of its own: for an app's ``ready``."""
    threading.Thread(target=_snipe, daemon=True).start()


def _snipe() -> None:
    here = stage.here()
    chance = random.Random(f"{os.environ['PGJOBS_TEST_SNIPING']} {os.environ.get('PGJOBS_TEST_NUMBER', '')}")
    while not here.is_open("peace"):
        time.sleep(chance.uniform(0, 0.01))
        targets = [thread for thread in threading.enumerate() if thread.name.startswith("pgjobs-job-")]
        if not targets:
            continue
        thread = chance.choice(targets)
        if thread.ident is not None and _is_between_jobs(thread.ident):
            kind = chance.choice(KINDS)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))
            here.note("strike", kind.__name__)


def _is_between_jobs(ident: int) -> bool:
    """Whether a thread is busy with our code: not with a job's, nor waiting for one."""
    frame = sys._current_frames().get(ident)
    if frame is None or frame.f_code is Buffers.next.__code__:
        return False
    while frame is not None and frame.f_code is not Door.call.__code__:
        frame = frame.f_back
    return frame is None
