"""The tour of `eventonce demo`: its traffic, its handler, and the count of its effects."""
