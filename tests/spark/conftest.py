"""Real Spark: these tests run in the environment of `make test-spark`, which has all of PySpark and Sail."""

from importlib.util import find_spec

if find_spec("pysail") is None:
    collect_ignore_glob = ["test_*.py"]
