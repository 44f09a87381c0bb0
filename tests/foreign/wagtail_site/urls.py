"""Wagtail's admin, and its pages at every other address."""

from __future__ import annotations

from django.urls import include, path
from wagtail import urls
from wagtail.admin import urls as admin_urls

urlpatterns = [path("cms/", include(admin_urls)), path("", include(urls))]
