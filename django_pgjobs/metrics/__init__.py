"""Metrics for Prometheus: what a worker has done, and how the whole fleet stands.

``families`` declares every metric. ``worker`` and ``fleet`` fill them, ``text`` writes them, and ``server`` answers
scrapes of a worker, without any package. ``registry`` alone knows ``prometheus_client``, and ``views`` Django's views.
"""
