"""Django's own tests of ``django.tasks``, from its source distribution and unchanged, on our backend.

``fetching`` gets them, ``loading`` lets them meet our backends instead of Django's Dummy and Immediate, ``running``
runs them in a process of their own, and ``test_contract`` compares what did not pass with ``docs/_data/contract.toml``,
which says why. On Django 5.2, which has no ``django.tasks``, ``borrowed`` gives them the backport under that name.
"""
