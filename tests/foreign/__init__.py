"""Acceptance by real software: packages that hand their work to ``django.tasks`` or Celery, with workers of ours.

``make foreign`` makes an environment for each package (``environments``), runs the scenarios of its site there, and
prints how many passed. A site is a folder with settings, models or tasks, and ``scenario_*.py``. The pytest of that
environment reads the ``scenarios.ini`` beside this file. The default suite collects no scenario: the packages are not
installed where it runs.
"""
