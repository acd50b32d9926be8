"""Ways to see what happens."""
