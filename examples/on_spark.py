"""Spark classifies the rows of a frame with a function of columns."""

import os
import sys

import numpy as np
from pyspark.sql import SparkSession

import graphpool as gp
from graphpool.demo import model_path, test_images

images, labels = test_images()

if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run the interpreter that has graphpool
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
    frame = spark.createDataFrame(rows, ["image", "label"]).repartition(4)
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes={"batch": (1, 8)}) as model:
        classify = gp.spark.udf(model)
        found = frame.withColumn("probabilities", classify("image")).collect()
    right = sum(np.argmax(row.probabilities) == row.label for row in found)
    print(f"{right} of {len(found)} right")
    assert len(found) == len(images)
    assert right > 0.95 * len(found)
    spark.stop()
