"""What django-sql-explorer's own tests ask of the settings, with its main database on PostgreSQL."""

from __future__ import annotations

from tests.foreign.explorer_site.settings import *  # noqa: F403
from tests.foreign.settings import DATABASES, MEDIA_ROOT

DEBUG = True
VITE_DEV_MODE = TEST_MODE = True
DATABASES = DATABASES | {
    name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{MEDIA_ROOT}-{name}"} for name in ("alt", "not_registered")
}
DATABASES["default"]["TEST"] = {"NAME": "test_pgjobs_foreign_own"}
DATABASE_ROUTERS = ["tests.foreign.explorer_site.own_settings.OneDatabase"]
EXPLORER_CONNECTIONS = {"SQLite": "default", "Another": "alt"}
EXPLORER_DEFAULT_CONNECTION = "default"
EXPLORER_AI_API_KEY = "none"
EXPLORER_ASSISTANT_MODEL_NAME = "none"
EXPLORER_DB_CONNECTIONS_ENABLED = EXPLORER_USER_UPLOADS_ENABLED = EXPLORER_CHARTS_ENABLED = True
EXPLORER_TRANSFORMS = (("foo", '<a href="{0}">{0}</a>'), ("bar", "x: {0}"))
EXPLORER_S3_ENDPOINT_URL = EXPLORER_S3_BUCKET = EXPLORER_S3_ACCESS_KEY = EXPLORER_S3_SECRET_KEY = None  # type: ignore[assignment]
CELERY_TASK_ALWAYS_EAGER = True


class OneDatabase:
    """Keeps migrations to the main database."""

    def allow_migrate(self, db: str, app_label: str, **_: object) -> bool | None:
        return None if db == "default" else False
