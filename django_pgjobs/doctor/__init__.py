"""Findings about a project and its databases, wrong or risky, in order of harm: for ``manage.py pgjobs doctor``.

It gathers what system checks, ``pgjobs check`` and ``check --in-flight`` know, and adds what none of them looks at. A
probe yields findings. It only reads, and one that fails is a finding itself. Only ``management`` imports this room.
"""
