"""Decorated functions: `@once` for events, and `@once(key=...)` for any function or method.

`function.py` has the decorated objects, and `decorate.py` how they are made and what is refused. A call is bound by
`binder.py`, named by `names.py`, and keyed by `keys.py`. `reading.py` makes a job of it, which goes through the steps
like that of an event. `waiting.py` lets calls wait for one of the same key that runs already.
"""
