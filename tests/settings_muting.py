"""A worker's settings that import the package, and a LOGGING that disables the loggers that exist by then."""

from __future__ import annotations

import django_pgjobs.logs
from tests.settings_worker import *  # noqa: F403

log = django_pgjobs.logs.safe_logger("django_pgjobs")
LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
