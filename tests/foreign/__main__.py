"""``make foreign``: run real software on our backend or bridge, each package in an environment of its own.

Uses the server that DATABASE_URL names; its databases begin with test_pgjobs_foreign and are dropped at the end. The
first run also installs the packages, and takes some ten minutes; most of the later ones' time goes into Wagtail's
migrations. Status 1 if a scenario failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers.installing import run
from benchmarks.workers import ROOT
from tests.foreign.environments import environment, versions
from tests.foreign.results import Result, published, read_report
from tests.foreign.sites import SITES, Site

HERE = Path(__file__).resolve().parent
DATA = ROOT / "docs" / "_data"


def main() -> int:
    """Run the scenarios and print how they went; return the exit status."""
    options = _options()
    commit = _clean_commit() if options.publish else ""
    ran = [(site, _run(site, options.arguments)) for site in SITES if site.name in options.only]
    results = [result for _, result in ran]
    passed, failed = sum(len(each.passed) for each in results), sum(len(each.failed) for each in results)
    say("\n".join(["", *map(str, results), f"{passed} passed, {failed} failed"]))
    if options.publish:
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        for name in _files(options.only):
            text = published(today, commit, [result for site, result in ran if site.data == name])
            (DATA / name).write_text(text, encoding="utf-8")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    names = [site.name for site in SITES]
    parser = argparse.ArgumentParser("tests.foreign", description=__doc__)
    parser.add_argument("--only", metavar="NAME[,NAME…]", help=f"of {', '.join(names)}")
    parser.add_argument("--publish", action="store_true", help="let the documentation show this run")
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENT", help="of pytest")
    options = parser.parse_args()
    options.only = options.only.split(",") if options.only else names
    parts = [{site.name for site in SITES if site.data == data} - set(options.only) for data in _files(options.only)]
    if options.publish and (options.arguments or any(parts)):
        parser.error("only a whole run is published, of the packages with tasks of Celery or of the others")
    if unknown := set(options.only) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def _files(names: list[str]) -> set[str]:
    return {site.data for site in SITES if site.name in names}


def _clean_commit() -> str:
    """Return the commit of this tree, whose code is what the run will show."""
    if changed := run(["git", "-C", str(ROOT), "status", "--porcelain"]):
        raise SystemExit(f"commit first: the published run names a commit\n{changed}")
    return run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]).strip()


def _run(site: Site, arguments: list[str]) -> Result:
    python = environment(site)
    own, django, version = versions(python, "django", site.project)
    say(f"== {site.project} {version}, Django {django}, Python {own}")
    folder = HERE / f"{site.name}_site"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as files:
        report = Path(files) / "report.xml"
        command = [str(python), "-X", "dev", "-m", "pytest", "-c", str(HERE / "scenarios.ini"), f"--junit-xml={report}"]
        environ = os.environ | {
            "DJANGO_SETTINGS_MODULE": f"tests.foreign.{site.name}_site.settings",
            "PGJOBS_FOREIGN_FILES": files,
        }
        subprocess.run([*command, str(folder), *arguments], env=environ, cwd=ROOT, stdin=subprocess.DEVNULL)
        passed, failed, figures = read_report(report)
    seconds = round(time.monotonic() - began)
    return Result(site.project, version, django, own, seconds, passed, failed, figures)


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
