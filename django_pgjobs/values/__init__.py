"""Values that settings and job definitions are made of: schedules, limits, backoff, retention, keys, tags."""
