"""Speed beside other ways of doing the same."""
