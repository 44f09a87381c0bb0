"""What celery-haystack-ng's own tests ask of the settings, on PostgreSQL."""

from __future__ import annotations

from tests.foreign.haystack_site.settings import *  # noqa: F403
from tests.foreign.settings import DATABASES

DATABASES["default"]["TEST"] = {"NAME": "test_pgjobs_foreign_own"}
BROKER_URL = "memory://"
CELERY_ALWAYS_EAGER = True
CELERY_IGNORE_RESULT = True
