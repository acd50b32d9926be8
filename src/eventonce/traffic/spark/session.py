"""A Spark session, by the name of an engine."""

import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from eventonce.errors import ConfigError, EventOnceError
from eventonce.traffic.drivers import need
from eventonce.traffic.recipe import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PORT, _CONNECT_PORT = 7077, 15002
_TIMEOUT = 10  # seconds to reach a server of Spark Connect: its client would try for more than ten minutes
_LOCAL_PARTITIONS = 16  # of a shuffle: Spark's 200 are for clusters, and each costs something
_RAISED = re.compile(r"[\w.]*[A-Z]\w+: ")  # how the last line of a trace begins


@contextmanager
def session(engine: str) -> Iterator["SparkSession"]:
    """Open a session that ends with the block: `local[*]`, `spark://HOST:PORT`, or `sc://HOST` of Spark Connect."""
    sql = need("pyspark.sql", "spark")
    spark = _open(sql.SparkSession.builder.appName("eventonce"), engine)
    try:
        check_workers(spark)
        yield spark
    except EventOnceError:
        raise
    except Exception as error:
        raise EventOnceError(f"{engine}: {_summary(error)}") from error
    finally:
        spark.stop()


def _open(builder: Any, engine: str) -> "SparkSession":
    if engine.startswith("sc://"):
        _reach(engine)
    try:
        if engine.startswith("sc://"):
            spark: SparkSession = builder.remote(engine).getOrCreate()
            return spark
        return _classic(builder.master(_master(engine)), engine)
    except Exception as error:
        remedy = "install Java 17 and all of PySpark: pip install 'eventonce[spark]'"
        raise ConfigError(f"--engine: {engine}: cannot open a session: {_summary(error)}; {remedy}") from error


def _reach(engine: str) -> None:
    try:
        parts = urlsplit(engine)
        socket.create_connection((parts.hostname or "", parts.port or _CONNECT_PORT), _TIMEOUT).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--engine: {engine}: cannot be reached: {error}; check that the server is running") from None


def _classic(builder: Any, engine: str) -> "SparkSession":
    if engine.startswith("local"):
        # Spark's own choice is the first python3 on the PATH, which need not be this one. A cluster has its own.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", _LOCAL_PARTITIONS)
        # Nothing waits for a response meanwhile, so take the collector of Java that computes least in all.
        builder = builder.config("spark.driver.defaultJavaOptions", "-XX:+UseParallelGC")
    is_terminal = str(sys.stderr.isatty()).lower()
    spark: SparkSession = builder.config("spark.ui.showConsoleProgress", is_terminal).getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # what fails in the end is reported in one sentence
    return spark


def _master(engine: str) -> str:
    host = engine.removeprefix("spark://")
    return f"{engine}:{_PORT}" if host != engine and ":" not in host else engine


def _summary(error: Exception) -> str:
    """Return the error at the end of a worker's trace, or the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[:1] or lines or [type(error).__name__])[0].removeprefix("eventonce.errors.")[:300]
