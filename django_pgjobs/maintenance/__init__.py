"""What keeps the tables right while workers work: each duty a room with one verb."""
