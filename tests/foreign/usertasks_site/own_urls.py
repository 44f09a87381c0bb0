"""Addresses that django-user-tasks' own tests ask for."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from user_tasks.urls import urlpatterns as its_own

urlpatterns = [*its_own, path("admin/", admin.site.urls)]
