"""The mailer of a test, in the way that each Django recommends."""

from __future__ import annotations

from typing import Any

from django.core import mail

LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
SMTP = "django.core.mail.backends.smtp.EmailBackend"


def use_mailer(settings: Any, backend: str, **options: Any) -> None:
    """Configure the default mailer in the way that this Django recommends."""
    if hasattr(mail, "mailers"):
        settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": options}}
    else:
        settings.EMAIL_BACKEND = backend
        for name, value in options.items():
            setattr(settings, f"EMAIL_{name.upper()}", value)
