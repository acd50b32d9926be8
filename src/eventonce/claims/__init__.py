"""The claim protocol, memos of runs, and outcomes of events."""
