"""Sets Django up before pytest imports anything that needs it."""

from __future__ import annotations

import django

django.setup()
