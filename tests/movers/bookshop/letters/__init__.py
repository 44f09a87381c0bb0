"""An app of the shop."""
