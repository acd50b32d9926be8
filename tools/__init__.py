"""Tools for the development of eventonce."""
