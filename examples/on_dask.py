"""Two workers of Dask classify the rows of a frame, no more at once than they have memory for."""

import dask
import numpy as np
import pandas as pd
from dask.dataframe import from_pandas
from distributed import Client, LocalCluster

import graphpool as gp
from graphpool.demo import model_path, test_images

images, labels = test_images()

if __name__ == "__main__":
    dask.config.set({"dataframe.convert-string": False})  # columns of arrays stay what they are
    frame = from_pandas(pd.DataFrame({"image": list(images), "label": labels}), npartitions=6)
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes={"batch": (1, 8)}) as model:
        needed = gp.dask.resources(model, nrows=100)
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, resources=needed, dashboard_address=None)
        with cluster, Client(cluster) as client:
            results = gp.dask.map_partitions(frame, model)
            found = client.compute(results, resources=needed).result()
    right = (np.stack(list(found["probabilities"])).argmax(axis=1) == found["label"]).sum()
    print(f"{right} of {len(found)} right")
    assert len(found) == len(images)
    assert right > 0.95 * len(found)
