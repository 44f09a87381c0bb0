"""The proof kit: faults on purpose, and a checker that finds by id what they broke. See ``README.md`` here."""
