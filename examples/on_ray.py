"""Two actors of Ray Data classify the rows of a dataset, each in the memory that it declares."""

import numpy as np
import ray

import graphpool as gp
from graphpool.demo import model_path, test_images

images, labels = test_images()

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    rows = ray.data.from_items(
        [{"image": image, "label": int(label)} for image, label in zip(images, labels, strict=True)]
    )
    with gp.onnx.load(model_path("digits_cnn"), threads=1, shapes={"batch": (1, 8)}) as model:
        results = gp.ray.map_batches(rows, model, workers=2)
    found = results.take_all()
    right = sum(np.argmax(row["probabilities"]) == row["label"] for row in found)
    print(f"{right} of {len(found)} right")
    assert len(found) == len(images)
    assert right > 0.95 * len(found)
    ray.shutdown()
