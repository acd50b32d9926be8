"""The tour that `eventonce demo` gives: the stream it makes, the handler it runs, and how its effects are counted."""
