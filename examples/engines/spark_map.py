"""Spark: the Python workers of four tasks at one key. `ask` is in a module that imports `tidegate.auto`.

PYSPARK_PYTHON is a Python that has tidegate, on each executor.
OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

from pyspark.sql import SparkSession
from spark_calls import ask

ROWS = 120


def main() -> None:
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answers = spark.range(ROWS).repartition(4).mapInPandas(ask, "id long, said string").collect()
    print(f"{len(answers)} of {ROWS} rows answered")
    spark.stop()


if __name__ == "__main__":
    main()
