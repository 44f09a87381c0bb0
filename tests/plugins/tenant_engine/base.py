"""Its wrapper, which no package of ours and none of Django's has."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql.base import DatabaseWrapper as Ordinary


class Refused(Exception):
    """A schema that cannot be set."""

    schema = "refused"


class DatabaseWrapper(Ordinary):
    """Leads to ``public`` until it is told another schema."""

    schema_name = "public"

    def set_schema(self, schema: str) -> None:
        if schema == Refused.schema:
            raise Refused
        self.schema_name = schema

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)  # type: ignore[misc]
        names = dict.fromkeys((self.schema_name, "public"))
        with self.connection.cursor() as setting:
            setting.execute(f"SET search_path = {', '.join(names)}")
        return cursor
