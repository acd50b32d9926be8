"""Tools for whoever works on eventonce."""
