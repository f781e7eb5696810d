"""Question: how much of what workers can do by themselves is left when Ray Data feeds them?

    python -m bench.bench_ray MODEL [images] [--rounds N] [--seconds S] [--workers N] [--block IMAGES] [--floor]

MODEL is an ONNX file with one input of images and a first dimension for rows, such as MobileNetV2. Two processes alone
run the model on images that they hold, both at once, before and behind; between as many actors of Ray Data run it on as
many synthetic images as Ray's tasks make, an image as bytes, which the actor converts; in turns. With one worker on two
processors Ray has one beside it. Blocks have as many images as `map_batches` hands to an actor at a time, unless
--block says. Ray's rates and processor times are those between a tenth and eight tenths of the results. Besides, Ray's
rate is compared with that of its own two actors while they are in the model: where all share two processors, that is
what waiting for rows costs. The most private memory of an actor is a sample every five seconds, and stands beside what
actors declared. Ray's metrics, task events and statistics of its event loops are off, it reports resources once a
second, and workers have the priority of the processes alone, where Ray lets them give way to any other program. With
--floor the same is measured for actors without graphpool, whose exponentials of NumPy take as long an image: what Ray
itself costs.
"""

import argparse
import multiprocessing
import os
import pickle
import re
import statistics
import threading
import time
from pathlib import Path

import numpy as np

import graphpool as gp
from graphpool.rows import RowFunction

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SAMPLE_S = 5.0
"""Samples of memory read the tables of all pages: each second they took 1.2 % of a processor, as a part of Ray's."""


def make_images(rows, shape):
    """A block of images as bytes, each from another place of one random image: making them is not the question."""
    nbytes = int(np.prod(shape))
    numbers = np.tile(np.frombuffer(np.random.default_rng(0).bytes(nbytes), np.uint8), 2)
    images = np.empty((len(rows["id"]), nbytes), np.uint8)
    for image, number in zip(images, rows["id"], strict=True):
        start = int(number) * 7919 % nbytes
        image[:] = numbers[start : start + nbytes]
    return {"input": images.reshape(-1, *shape)}


class Exponentials:
    """Reads rows as the model does, and takes so many exponentials for each: graphpool has no part in it."""

    def __init__(self, count):
        self._count, self._numbers = count, np.linspace(-1, 1, 1 << 14, dtype=np.float32)
        self._results = np.empty_like(self._numbers)

    @classmethod
    def lasting(cls, seconds):
        """That take so long an image."""
        self, count = cls(0), 2000
        self._work(count)
        start_s = time.thread_time()
        self._work(count)
        return cls(round(seconds * count / (time.thread_time() - start_s)))

    def _work(self, count):
        for _ in range(count):
            np.exp(self._numbers, out=self._results)

    def __call__(self, batch):
        """A thousand numbers for each row, as the model gives."""
        for image in batch["input"]:
            image.astype(np.float32)
            self._work(self._count)
        return {"output": np.zeros((len(batch["input"]), 1000), np.float32)}

    def __reduce__(self):
        return Exponentials, (self._count,)


def work_alone(text, shape, block, seconds, barrier, found):
    """Images a second of one process, and its processor time for each."""
    predict = pickle.loads(text)
    images = make_images({"id": range(block)}, shape)
    predict(images)
    barrier.wait()
    count, start_s, start_cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < start_s + seconds:
        predict(images)
        count += block
    found.put((count / (time.perf_counter() - start_s), (time.process_time() - start_cpu_s) / count))


def alone(text, shape, block, seconds, nworkers):
    """Images a second of all workers, and mean processor time for each image."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(nworkers), context.Queue()
    work = text, shape, block, seconds, barrier, found
    workers = [context.Process(target=work_alone, args=work) for _ in range(nworkers)]
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
            command = (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()  # Ray changes both
            if b"ray" in command or folder.name == str(os.getpid()):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[folder.name, b"MapWorker" in command] = (int(fields[11]) + int(fields[12])) * TICK_S
        except OSError:
            continue
    return found


class Recorded:
    """A dataset that notes the memory which actors declare."""

    def __init__(self, rows):
        self.rows = rows

    def map_batches(self, *args, memory, **options):
        """As of the dataset."""
        self.memory = memory
        return self.rows.map_batches(*args, memory=memory, **options)


class MemoryOfActors(threading.Thread):
    """The most private memory of an actor, sampled until the block ends. Unit: bytes."""

    def __init__(self):
        super().__init__()
        self.most, self._is_over = 0, threading.Event()

    def run(self):
        """Take samples."""
        while not self._is_over.wait(SAMPLE_S):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if b"ray::MapWorker" in (folder / "cmdline").read_bytes():
                        sizes = re.findall(r"Private_\w+: +(\d+)", (folder / "smaps_rollup").read_text())
                        self.most = max(self.most, sum(map(int, sizes)) * 1024)
                except OSError:
                    continue

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc_info):
        self._is_over.set()
        self.join()


def on_ray(map_batches, shape, block, count, nworkers):
    """Images a second, also of the actors while they run; processor time for each of actors and of all; memory."""
    import ray  # not by who collects benchmarks

    dataset = ray.data.range(count, override_num_blocks=-(-count // block))
    making = {"fn_kwargs": {"shape": shape}, "batch_size": None}  # whole blocks: in the task that reads them
    images = Recorded(dataset.map_batches(make_images, **making))
    results = map_batches(images)
    done, samples = 0, []
    with MemoryOfActors() as memory:
        for batch in results.iter_batches(batch_size=None, prefetch_batches=1):
            done += len(next(iter(batch.values())))
            if done >= count * (1, 8, 11)[len(samples)] / 10:  # all actors are at work from then on, and until then
                samples.append((done, time.perf_counter(), cpu_times()))
    assert done == count
    assert memory.most <= images.memory
    print(f"memory of an actor: {memory.most / 2**20:.0f} MiB of {images.memory / 2**20:.0f} MiB declared", flush=True)
    in_model = float(re.findall(r"single task throughput: ([\d.]+)", results.stats())[-1])
    (before, start_s, start_cpu), (after, end_s, end_cpu) = samples
    used = {key: used_s - start_cpu.get(key, 0.0) for key, used_s in end_cpu.items()}
    actors_s = sum(used_s for (_, is_actor), used_s in used.items() if is_actor)
    count = after - before
    return count / (end_s - start_s), nworkers * in_model, actors_s / count, sum(used.values()) / count


def compare(text, map_batches, shape, arguments, count):
    """The figures of a turn of Ray between two of the processes alone."""
    by_themselves = text, shape, arguments.block, arguments.seconds, arguments.workers
    before = alone(*by_themselves)
    rate, in_model, actors_s, all_s = on_ray(map_batches, shape, arguments.block, count, arguments.workers)
    own_rate, own_cpu_s = map(statistics.mean, zip(before, alone(*by_themselves), strict=True))
    milliseconds = own_cpu_s * 1e3, actors_s * 1e3, all_s * 1e3
    found = own_rate, in_model, rate, rate / own_rate, rate / in_model, *milliseconds
    print("  ".join(f"{value:.4g}" for value in found), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description="How much workers do under Ray Data, beside what they do alone.")
    parser.add_argument("model")
    parser.add_argument("images", type=int, nargs="?", default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn of the processes alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--block", type=int, help="images that a worker takes at a time")
    parser.add_argument("--floor", action="store_true", help="also actors without graphpool that take as long")
    arguments = parser.parse_args()
    import ray  # behind the parser, whose help needs no Ray

    quiet = {"enable_metrics_collection": 0, "task_events_report_interval_ms": 0, "event_stats": 0}
    quiet |= {"raylet_report_resources_period_milliseconds": 1000, "worker_niceness": 0}
    os.environ |= {"RAY_AUTH_MODE": "disabled", **{f"RAY_{name}": str(value) for name, value in quiet.items()}}
    ray.init(num_cpus=arguments.workers + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    each = arguments.images // arguments.rounds
    with gp.onnx.load(arguments.model, threads=1) as model:
        shape = model.inputs[0].shape[1:]
        columns = {model.inputs[0].name: "input"}
        function = RowFunction(model, columns=columns)
        text = pickle.dumps(function)
        arguments.block = arguments.block or function.rows_within(gp.ray._BATCH_NBYTES, gp.ray._MOST_ROWS)

        def by_model(images):
            return gp.ray.map_batches(
                images, model, columns=columns, workers=arguments.workers, batch_size=arguments.block
            )

        def by_exponentials(images):
            pool = ray.data.ActorPoolStrategy(size=arguments.workers)
            own = {"fn_constructor_args": [exponentials._count], "num_cpus": 1, "memory": 2**30, "compute": pool}
            return images.map_batches(Exponentials, batch_size=arguments.block, batch_format="numpy", **own)

        rows = []
        for _ in range(arguments.rounds):
            rows.append(compare(text, by_model, shape, arguments, each))
            if arguments.floor:
                exponentials = Exponentials.lasting(rows[-1][5] / 1e3)
                print("floor: ", end="")
                compare(pickle.dumps(exponentials), by_exponentials, shape, arguments, each)
    print("rates: alone, of Ray's actors in the model, of Ray; ratios of the third by the first and second;")
    print("ms of processor time an image: alone, of actors, of all of Ray; medians:")
    print("  ".join(f"{statistics.median(column):.4g}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
