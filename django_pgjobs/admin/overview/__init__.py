"""The overview: what is on fire, what waits, what fails, and who works on it, each figure a link to its list.

A section is a function of what was ``Seen``: it reads at bounded cost and returns what its template shows. Figures come
from the row that the leader writes every 15 seconds, so that a page costs the same however many jobs there are.
"""
