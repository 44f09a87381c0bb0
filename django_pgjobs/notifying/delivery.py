"""Deliver a notice: by mail to the admins, by a webhook, or by a callable of the project."""

from __future__ import annotations

import http.client
import inspect
import json
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_pgjobs.conf import get_conf
from django_pgjobs.notifying.notice import FailureNotice
from django_pgjobs.values.notify_failures import MAIL_ADMINS, is_web_address

SECONDS = 10.0
"""Maximum silence of a server."""

MOST_ANSWER_BYTES = 200

Deliver = Callable[[FailureNotice], object]


def load(path: str) -> Deliver:
    """Return what delivers, by the setting's ``to``. Raises ``ImproperlyConfigured`` naming the path and the reason."""
    if path == MAIL_ADMINS:
        return mail_admins
    try:
        found = import_string(path)
    except Exception as error:
        raise ImproperlyConfigured(f'PGJOBS["NOTIFY_FAILURES"]: {path!r} cannot be imported: {error}') from error
    if not callable(found) or inspect.iscoroutinefunction(found) or inspect.isclass(found):
        raise ImproperlyConfigured(f'PGJOBS["NOTIFY_FAILURES"]: {path!r} is no plain function.')
    return found  # type: ignore[no-any-return]


def mail_admins(notice: FailureNotice) -> None:
    """Mail a notice to ``settings.ADMINS`` by Django's default mailer, as Django's own ``mail_admins`` does.

    A mail server that is silent for 10 s fails it, unless the settings have another timeout.
    """
    # Each is an address, or for Django 5.2 a pair of name and address.
    admins = [each if isinstance(each, str) else each[1] for each in settings.ADMINS]
    if not admins:
        raise ImproperlyConfigured('PGJOBS["NOTIFY_FAILURES"]: "to" is "mail_admins", but settings.ADMINS is empty.')
    message = mail.EmailMessage(
        f"{settings.EMAIL_SUBJECT_PREFIX}{notice.subject}", notice.text, settings.SERVER_EMAIL, admins
    )
    mailer = _mailer()
    if getattr(mailer, "timeout", SECONDS) is None:
        mailer.timeout = SECONDS
    mailer.send_messages([message])


def _mailer() -> Any:
    """Return Django's default mailer; Django 6.1 has renamed the way to it."""
    mailers = getattr(mail, "mailers", None)
    return mail.get_connection() if mailers is None else mailers.default


def webhook(notice: FailureNotice) -> None:
    """Post a notice as JSON to the setting's ``url``. Raises what ``post`` raises."""
    conf = get_conf().notify_failures
    if conf is None or not conf.url:
        raise ImproperlyConfigured('PGJOBS["NOTIFY_FAILURES"]: the webhook needs "url".')
    post(conf.url, notice.as_dict())


def post(url: str, body: object) -> None:
    """Post ``body`` as JSON by HTTPS or HTTP; redirects are not followed.

    Raises ``ValueError`` for another scheme, and ``OSError`` if the server is silent for 10 s, cannot be reached, or
    answers with another status than 2xx. No error names the path of the URL, which may be a secret.
    """
    if not is_web_address(url):
        raise ValueError("a webhook is posted to an https or http address")
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    connection = _connection(parts.scheme, str(parts.hostname), parts.port)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            said = answer.read(MOST_ANSWER_BYTES)
        if not 200 <= answer.status < 300:
            raise OSError(f"{parts.hostname} answered with status {answer.status}: {said.decode(errors='replace')}")
    except http.client.HTTPException as error:
        raise OSError(f"{parts.hostname} answered with no HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _connection(scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=SECONDS)
    return http.client.HTTPSConnection(host, port, timeout=SECONDS, context=ssl.create_default_context())
