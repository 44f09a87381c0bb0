"""The packages that are tried, and what their environments need."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workers import ROOT

ALL = (f"--editable={ROOT}[binary,environ]", "pytest>=8.3")
"""What every environment needs. It takes the newest Django that the package allows."""

CELERY = ("celery>=5.5", "pytest-django>=4.9", "redis>=5")


@dataclass(frozen=True, slots=True)
class Site:
    """A package and the site that uses it; ``also`` is what else its environment needs.

    ``sources``: whether the released sources are unpacked there, too, for the tests in them.
    """

    name: str
    project: str
    requirement: str
    also: tuple[str, ...] = ()
    sources: bool = False

    @property
    def requirements(self) -> tuple[str, ...]:
        return (*ALL, self.requirement, *self.also)

    @property
    def data(self) -> str:
        """The name of the file in which its last run is published."""
        return "foreign_celery.toml" if self.sources else "foreign.toml"


SITES = (
    # Jinja2 is for Wagtail's own tests, which its extra for tests would give, with much else.
    Site("wagtail", "wagtail", "wagtail>=8", ("Jinja2>=3",)),
    Site("pictures", "django-pictures", "django-pictures>=1.8"),
    # Its monitor wraps tasks where Sentry's library is installed.
    Site("crontask", "django-crontask", "django-crontask>=2", ("sentry-sdk>=2.24,<3",)),
    # Packages with tasks of Celery, pinned: what differs is named in the scenarios. The rest is for their own tests.
    Site(
        "explorer",
        "django-sql-explorer",
        "django-sql-explorer==5.3.1",
        (*CELERY, "boto3", "factory-boy", "xlsxwriter", "pandas", "matplotlib"),
        sources=True,
    ),
    Site(
        "usertasks",
        "django-user-tasks",
        "django-user-tasks==4.0.0",
        (*CELERY, "boto3", "django-filter", "django-storages", "mock", "packaging", "rules", "testfixtures"),
        sources=True,
    ),
    Site(
        "haystack",
        "celery-haystack-ng",
        "celery-haystack-ng==2.0.1",
        (*CELERY, "django-haystack", "whoosh", "setuptools"),
        sources=True,
    ),
)
