"""Our own speed, as ratios within one run on one machine. Nothing here is a test."""
