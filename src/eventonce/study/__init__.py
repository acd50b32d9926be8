"""Reading recorded traffic: what a pipeline would have done with it, and which rules fit it."""
