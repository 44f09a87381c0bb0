"""People who move here from Celery: a shop that does it in an afternoon, under load, and goes back."""
