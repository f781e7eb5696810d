"""Question: how much of what two workers can do by themselves is left when Ray Data feeds them?

    python -m bench.bench_ray MODEL [images] [--rounds N]

MODEL is an ONNX file with one input of images and a first dimension for rows, such as MobileNetV2. Two processes
alone run the model on images that they hold, both at once; then two actors of Ray Data run it on as many synthetic
images as Ray's tasks make, an image as bytes, which the actor converts; in turns. Ray's rates and processor times are
those between a tenth and nine tenths of the results.
"""

import argparse
import multiprocessing
import os
import pickle
import statistics
import time
from pathlib import Path

import numpy as np

import graphpool as gp
from graphpool.rows import RowFunction

WORKERS, BLOCK = 2, 64
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def make_images(rows, shape):
    """A block of images as bytes."""
    nrows = len(rows["id"])
    numbers = np.random.default_rng(int(rows["id"][0])).bytes(nrows * int(np.prod(shape)))
    return {"input": np.frombuffer(numbers, np.uint8).reshape(nrows, *shape)}


def work_alone(text, shape, seconds, barrier, found):
    """Images a second of one process, and its processor time for each."""
    predict = pickle.loads(text)
    images = make_images({"id": range(BLOCK)}, shape)
    predict(images)
    barrier.wait()
    count, start_s, start_cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < start_s + seconds:
        predict(images)
        count += BLOCK
    found.put((count / (time.perf_counter() - start_s), (time.process_time() - start_cpu_s) / count))


def alone(text, shape, seconds):
    """Images a second of all workers, and mean processor time for each image."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(WORKERS), context.Queue()
    workers = [context.Process(target=work_alone, args=(text, shape, seconds, barrier, found)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    rates, cpu_s = zip(*(found.get() for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return sum(rates), statistics.mean(cpu_s)


def cpu_times():
    """Processor time of each process of Ray and of this one, by number and name. Unit: seconds."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"ray" in command or folder.name == str(os.getpid()):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[folder.name, b"MapWorker" in command] = (int(fields[11]) + int(fields[12])) * TICK_S
        except OSError:
            continue
    return found


def on_ray(model, shape, count):
    """Images a second, and processor time for each of actors and of all."""
    import ray  # not by who collects benchmarks

    dataset = ray.data.range(count, override_num_blocks=-(-count // BLOCK))
    images = dataset.map_batches(make_images, fn_kwargs={"shape": shape}, batch_size=BLOCK)
    results = gp.ray.map_batches(
        images, model, columns={model.inputs[0].name: "input"}, workers=WORKERS, batch_size=BLOCK
    )
    done, samples = 0, []
    for batch in results.iter_batches(batch_size=None, prefetch_batches=1):
        done += len(next(iter(batch.values())))
        if done >= count * (1, 9, 11)[len(samples)] / 10:  # all actors are at work from then on, and until then
            samples.append((done, time.perf_counter(), cpu_times()))
    assert done == count
    (before, start_s, start_cpu), (after, end_s, end_cpu) = samples
    used = {key: used_s - start_cpu.get(key, 0.0) for key, used_s in end_cpu.items()}
    actors_s = sum(used_s for (_, is_actor), used_s in used.items() if is_actor)
    count = after - before
    return count / (end_s - start_s), actors_s / count, sum(used.values()) / count


def main():
    import ray

    parser = argparse.ArgumentParser(description="How much two workers do under Ray Data, beside what they do alone.")
    parser.add_argument("model")
    parser.add_argument("images", type=int, nargs="?", default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    each = arguments.images // arguments.rounds
    rows = []
    with gp.onnx.load(arguments.model, threads=1) as model:
        shape = model.inputs[0].shape[1:]
        text = pickle.dumps(RowFunction(model, columns={model.inputs[0].name: "input"}))
        for _ in range(arguments.rounds):
            own_rate, own_cpu_s = alone(text, shape, 20.0)
            rate, actors_s, all_s = on_ray(model, shape, each)
            rows.append((own_rate, rate, rate / own_rate, own_cpu_s * 1e3, actors_s * 1e3, all_s * 1e3))
            print("  ".join(f"{value:.4g}" for value in rows[-1]), flush=True)
    print("own rate, Ray's, ratio; ms of processor time an image: alone, of actors, of all of Ray; medians:")
    print("  ".join(f"{statistics.median(column):.4g}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
