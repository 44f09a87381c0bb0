"""Middleware for tools that people already have: OpenTelemetry's traces and Sentry.

Nothing imports this room: the paths in ``PGJOBS["MIDDLEWARE"]`` plug it in. Neither an error nor an outage of these
tools changes anything about a job.
"""
