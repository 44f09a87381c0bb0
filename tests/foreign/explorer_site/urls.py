"""Addresses of the site with django-sql-explorer, those that its own tests ask for."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("explorer/", include("explorer.urls")), path("admin/", admin.site.urls)]
