"""Settings of the site on Wagtail, with the ``OPTIONS`` that docs/how-to/wagtail.md recommends."""

from __future__ import annotations

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BACKEND, BASIC_APPS

ROOT_URLCONF = "tests.foreign.wagtail_site.urls"
INSTALLED_APPS = [
    "tests.foreign.wagtail_site",
    "wagtail.contrib.frontend_cache",
    "wagtail.sites",
    "wagtail.users",
    "wagtail.snippets",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.admin",
    "wagtail",
    "modelcluster",
    "taggit",
    "django_filters",
    *BASIC_APPS,
    "django.contrib.staticfiles",
    "django.contrib.postgres",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
WAGTAIL_SITE_NAME = "News"
WAGTAILADMIN_BASE_URL = "http://localhost"
WAGTAILSEARCH_BACKENDS = {"default": {"BACKEND": "wagtail.search.backends.database"}}
WAGTAILFRONTENDCACHE = {"traced": {"BACKEND": "tests.foreign.wagtail_site.purging.Traced"}}

INDEXING = "modelsearch.tasks.insert_or_update_object_task"
TASKS = {
    "default": {
        "BACKEND": BACKEND,
        "OPTIONS": {
            "GIVE_UP_ON": ["django.core.exceptions.ObjectDoesNotExist"],
            "TASKS": {
                INDEXING: {"unique": {"key": "index:{app_label}.{model_name}.{pk}", "until": "started"}},
            },
        },
    }
}
