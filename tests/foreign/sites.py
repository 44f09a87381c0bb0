"""The packages that are tried, and what their environments need."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workers import ROOT

ALL = (f"--editable={ROOT}[binary,environ]", "pytest>=8.3")
"""What every environment needs. It takes the newest Django that the package allows."""


@dataclass(frozen=True, slots=True)
class Site:
    """A package and the site that uses it; ``also`` is what else its environment needs."""

    name: str
    project: str
    requirement: str
    also: tuple[str, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        return (*ALL, self.requirement, *self.also)


SITES = (
    # Jinja2 is for Wagtail's own tests, which its extra for tests would give, with much else.
    Site("wagtail", "wagtail", "wagtail>=8", ("Jinja2>=3",)),
    Site("pictures", "django-pictures", "django-pictures>=1.8"),
    # Its monitor wraps tasks where Sentry's library is installed.
    Site("crontask", "django-crontask", "django-crontask>=2", ("sentry-sdk>=2.24,<3",)),
)
