"""A stream to be killed: reads a folder file by file, and writes unique rows. `python job.py IN OUT CHECKPOINT`"""

import sys

from pyspark.sql import SparkSession

from eventonce.rules import Rulebook, identity
from eventonce.traffic.spark.stream import dedup_stream, watch

if __name__ == "__main__":
    folder, out, checkpoint = sys.argv[1:]
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    frame = session.readStream.option("maxFilesPerTrigger", 1).text(folder)
    unique = dedup_stream(frame, Rulebook("c", [], identity("14d", "retry")))
    writer = unique.select("value").writeStream.format("text").option("checkpointLocation", checkpoint)
    watch(writer.trigger(availableNow=True).start(out))
