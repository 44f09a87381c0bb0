"""Settings of the site with celery-haystack-ng, with the model and the index of its own tests."""

from __future__ import annotations

import os

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BASIC_APPS, MEDIA_ROOT

INSTALLED_APPS = [*BASIC_APPS, "haystack", "celery_haystack", "celery_haystack.tests"]
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.whoosh_backend.WhooshEngine", "PATH": MEDIA_ROOT}}
HAYSTACK_SIGNAL_PROCESSOR = "celery_haystack.signals.CelerySignalProcessor"
BROKER_URL = os.environ.get("PGJOBS_FOREIGN_REDIS")
CELERY_DEFAULT_QUEUE = "celery-haystack"
