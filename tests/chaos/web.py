"""A web process of the test project that exports metrics by django-prometheus."""

from __future__ import annotations

from django.urls import include, path

from tests.settings_worker import *  # noqa: F403
from tests.settings_worker import INSTALLED_APPS

INSTALLED_APPS = ["django_prometheus", *INSTALLED_APPS]
ROOT_URLCONF = __name__
ALLOWED_HOSTS = ["127.0.0.1"]

urlpatterns = [path("", include("django_prometheus.urls"))]
