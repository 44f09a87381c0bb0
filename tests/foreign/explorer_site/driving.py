"""Has the tasks of django-sql-explorer run, by its own views and tasks, and prints what they did."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import django


class Bucket(BaseHTTPRequestHandler):
    """S3 as it is for an upload; refuses the first one of each query's snapshot."""

    puts: list[tuple[str, int]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        folder = self.path.split("/")[2]  # query-1 of a snapshot; another name of a report
        known = folder if folder.startswith("query-") else "report"
        status = 403 if known != "report" and not any(name == known for name, _ in self.puts) else 200
        self.puts.append((known, status))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main() -> dict[str, Any]:
    """Do what users do, wait, and return the mails, the uploads and what is left of the log of queries."""
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import reverse
    from django.utils import timezone
    from explorer.models import Query, QueryLog
    from explorer.tasks import snapshot_queries, truncate_querylogs

    from tests.foreign.explorer_site.settings import EMAIL_FILE_PATH
    from tests.plugins.fix_db import wait_until

    bucket = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PGJOBS_FOREIGN_PORT"])), Bucket)
    threading.Thread(target=bucket.serve_forever, daemon=True).start()
    good, bad = (
        Query.objects.create(title=title, sql=sql, snapshot=title == "good")
        for title, sql in (("good", "SELECT 6 * 7 AS answer"), ("bad", "SELECT nothing FROM nowhere"))
    )
    Query.objects.create(title="second", sql="SELECT 1", snapshot=True)
    for days in (40, 20):
        log = QueryLog.objects.create(sql=f"of {days} days ago")
        QueryLog.objects.filter(pk=log.pk).update(run_at=timezone.now() - timedelta(days=days))
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    for query in (good, bad):
        answer = client.post(reverse("email_csv_query", args=[query.pk]), {"email": f"{query.title}@example.org"})
        assert answer.status_code == 200
    snapshot_queries.delay()
    truncate_querylogs.delay(30)

    def mails() -> list[str]:
        lines = "".join(each.read_text() for each in Path(EMAIL_FILE_PATH).glob("*.log")).splitlines()
        return sorted(line for line in lines if line.startswith("Subject:"))

    def stored() -> bool:
        return len(mails()) == 4 and sum(status == 200 for _, status in Bucket.puts) == 3 and not _old().exists()

    def _old() -> Any:
        return QueryLog.objects.filter(sql="of 40 days ago")

    wait_until(stored, 120, "all tasks have ended")
    return {
        "mails": mails(),
        "puts": sorted(Bucket.puts),
        "logs": sorted(QueryLog.objects.values_list("sql", flat=True)),
    }


if __name__ == "__main__":
    django.setup()
    sys.stdout.write(json.dumps(main()) + "\n")
