"""Question: does the simulator of `graphpool.fleet` tell how a service with two workers answers?

    python -m bench.bench_fleet [seconds] [--pad-ms MS] [--json]

The command ``graphpool serve`` runs a model with two workers; requests come at random times at shares of what it can
do. The service notes how long each of its runs takes. The simulator is given these times by their rows, without their
order, as they would be with the other worker at work all the time; how much less a run takes alone; what lone requests
take beside their runs; and when requests were sent. Each load is sent twice, at the same moments: how much the second
course differs from the first is what nobody could foretell. Requests with 256 rows are joined up to 1,024. With
``--pad-ms`` a run of n requests lasts at least (n + 1) / 2 times that, most of which it sleeps: other work on the
machine then matters less.
"""

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

import numpy as np

from graphpool import demo
from graphpool.fleet import Service, ServiceTimes, poisson_arrivals, simulate

ROWS, MOST_ROWS, WORKERS = 256, 1024, 2
MOST_REQUESTS, DEADLINE_S = 24, 5.0
LOADS = (0.4, 0.7, 0.9, 1.5)
"""Shares of the capacity."""
COURSES = 10
"""Simulations of each load, with other random numbers."""
MODEL = demo.model_path("digits_transformer")
OPTIONS = {"join": "batch", "max_requests": MOST_REQUESTS, "deadline_s": DEADLINE_S, "workers": WORKERS}


SERVE = """
import sys, time
from graphpool import cli
from graphpool.serve import batching
from graphpool.serve.service import Service

pad_s, runs = float(sys.argv.pop(1)), []
note, run_joined = Service._on_run, batching._run_joined

def run_padded(model, requests):
    end_s = time.perf_counter() + pad_s * (1 + len(requests)) / 2
    found = run_joined(model, requests)
    time.sleep(max(end_s - time.perf_counter(), 0))
    return found

def on_run(self, served, nrequests, seconds):
    runs.append(f"{time.perf_counter()} {nrequests} {seconds}")
    note(self, served, nrequests, seconds)

Service._on_run, batching._run_joined = on_run, run_padded
status = cli.main(sys.argv[1:])
print("\\n".join(runs))
sys.exit(status)
"""
"""The command, which prints its runs when it has ended: when each ended, its requests, its seconds."""


class Running:
    """``graphpool serve`` with two workers, until the block ends; `runs` is what it noted."""

    def __init__(self, pad_s):
        self._pad_s = pad_s

    def __enter__(self):
        line = [
            sys.executable,
            "-c",
            SERVE,
            str(self._pad_s),
            "serve",
            str(MODEL),
            "--threads",
            "1",
            "--port",
            "0",
            "--json",
        ]
        line += ["--shape", f"batch=1..{MOST_ROWS}"]
        for name, value in OPTIONS.items():
            line += [f"--{name.replace('_', '-')}", str(value)]
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self._process.stderr.readline().rsplit(":", 1)[1])
        return self

    def __exit__(self, *exc_info):
        self._process.terminate()
        output, _ = self._process.communicate()
        self.runs = np.loadtxt(output.rsplit("}\n", 1)[1].splitlines(), ndmin=2)


class Clients:
    """Sends what is due, each request on a connection of its own, in one thread: many would wait for the GIL."""

    def __init__(self, port):
        images = np.ascontiguousarray(np.resize(demo.test_images()[0], (ROWS, 1, 8, 8)), np.float32)
        entry = {"name": "image", "shape": list(images.shape), "datatype": "FP32"}
        document = json.dumps({
            "inputs": [entry | {"parameters": {"binary_data_size": images.nbytes}}],
            "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}],
        }).encode()  # fmt: skip
        body, self._address = document + images.tobytes(), ("127.0.0.1", port)
        lines = ["POST /v2/models/digits_transformer/infer HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"Inference-Header-Content-Length: {len(document)}", f"Content-Length: {len(body)}"]
        self._message = "\r\n".join([*lines, "", ""]).encode() + body

    def send(self, times_s):
        """When each request was sent, on the clock of all processes, the status of its answer, and how long it took."""
        due, answers, begin_s = deque(times_s), [], time.perf_counter()
        with selectors.DefaultSelector() as waiting:
            while due or waiting.get_map():
                if due and begin_s + due[0] <= time.perf_counter():
                    due.popleft()
                    start_s, connection = time.perf_counter(), socket.create_connection(self._address, timeout=60)
                    waiting.register(connection, selectors.EVENT_READ, (start_s, bytearray()))
                    with suppress(ConnectionError):  # refused, and closed, before all was read
                        connection.sendall(self._message)
                until_s = max(begin_s + due[0] - time.perf_counter(), 0.0) if due else None
                for key, _ in waiting.select(until_s):
                    start_s, answer = key.data
                    try:
                        part = key.fileobj.recv(1 << 16)
                    except ConnectionError:
                        part = b""
                    answer += part
                    if not part:
                        status = int(answer[9:12]) if answer else 503
                        answers.append((start_s, status, time.perf_counter() - start_s))
                        waiting.unregister(key.fileobj)
                        key.fileobj.close()
        return [np.array(column) for column in zip(*sorted(answers), strict=True)]


def quantiles_ms(latencies_s):
    return {f"p{mark}_ms": float(np.quantile(latencies_s, mark / 100) * 1e3) for mark in (50, 90, 99)}


def measure(seconds, pad_s):
    """A row for each load: what the service did, and what the simulator says."""
    sent = []
    with Running(pad_s) as service:
        clients = Clients(service.port)
        clients.send(np.zeros(MOST_REQUESTS))
        bursts = [clients.send(np.zeros(MOST_REQUESTS)) for _ in range(8)]
        capacity = MOST_REQUESTS / statistics.median((at_s + taken_s).max() - at_s[0] for at_s, _, taken_s in bursts)
        for number, load in enumerate(LOADS):
            alone = clients.send(np.arange(20) * 0.2)
            arrivals_s = poisson_arrivals(load * capacity, round(load * capacity * seconds), seed=number)
            sent.append((load, alone, clients.send(arrivals_s), clients.send(arrivals_s)))
    return {"capacity_per_s": capacity, "loads": compare(sent, service.runs)}


def shares_beside(runs):
    """Of each run the share of its time during which the other worker ran."""
    ends = runs[:, 0]
    starts = ends - runs[:, 2]
    common = np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts)
    np.fill_diagonal(common, 0)
    return np.minimum(common.clip(min=0).sum(axis=1) / runs[:, 2], 1)


def times_of(runs):
    """What the simulator is told of runs, as if the other worker had been at work all the time."""
    beside, single = shares_beside(runs), runs[:, 1] == 1
    alone_s, both_s = (np.median(runs[single & chosen, 2]) for chosen in (beside < 0.05, beside > 0.95))
    alone_share = float(min(alone_s / both_s, 1.0))
    full_s = runs[:, 2] / (beside + (1 - beside) * alone_share)
    return ServiceTimes.of_runs(runs[:, 0] - runs[:, 2], ROWS * runs[:, 1], full_s, alone_share)


def beside_runs(alone, runs):
    """What lone requests took beside their runs, which ended meanwhile."""
    for start_s, _, taken_s in zip(*alone, strict=True):
        own = runs[(runs[:, 0] > start_s) & (runs[:, 0] < start_s + taken_s)]
        if len(own) == 1:
            yield float(taken_s - own[0, 2])


def compare(sent, runs):
    """A row of the table for each load: the simulator goes through all of them, as the service did."""
    times, begin_s = times_of(runs), (runs[:, 0] - runs[:, 2]).min()
    overhead_s = [beside for _, alone, *_ in sent for beside in beside_runs(alone, runs)]
    service = Service(
        times=times, workers=WORKERS, most_rows=MOST_ROWS, max_requests=MOST_REQUESTS, deadline_s=DEADLINE_S,
        overhead_s=overhead_s,
    )  # fmt: skip
    arrivals_s = np.concatenate([part[0] for _, *parts in sent for part in parts]) - begin_s
    courses = [simulate(service, arrivals_s, np.full(len(arrivals_s), ROWS), seed=seed) for seed in range(COURSES)]
    rows, end = [], 0
    for load, alone, (sent_s, status, taken_s), again in sent:
        begin = end + len(alone[0])
        end = begin + len(sent_s)
        latencies_s, answers = (
            np.concatenate([getattr(course, name)[begin:end] for course in courses]) for name in ("latency_s", "status")
        )
        end += len(again[0])
        chosen = runs[(runs[:, 0] > sent_s[0]) & (runs[:, 0] < (sent_s + taken_s).max())]
        real, told = quantiles_ms(taken_s[status == 200]), quantiles_ms(latencies_s[answers == 200])
        repeated = quantiles_ms(again[2][again[1] == 200])
        row = {"load": load, "requests": len(sent_s), "run_ms": float(np.median(chosen[:, 2] / chosen[:, 1]) * 1e3)}
        row |= {"alone_share": times.alone_share, "overhead_ms": statistics.median(overhead_s) * 1e3}
        for name in real:
            row |= {name: real[name], f"simulated_{name}": told[name], f"{name[:3]}_ratio": told[name] / real[name]}
            row[f"{name[:3]}_again_ratio"] = repeated[name] / real[name]
        refused = {"refused_percent": status == 503, "simulated_refused_percent": answers == 503}
        rows.append(row | {name: 100 * float(found.mean()) for name, found in refused.items()})
    return rows


def main():
    parser = argparse.ArgumentParser(description=re.split(r"\n", __doc__)[0])
    parser.add_argument("seconds", type=float, nargs="?", default=20.0, help="of each course of a load")
    parser.add_argument("--pad-ms", type=float, default=0.0, help="least time of a run (default: none)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.seconds, arguments.pad_ms / 1e3)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(f"capacity: {found['capacity_per_s']:.4g} requests a second")
    names = list(found["loads"][0])
    print(f"| {' | '.join(names)} |\n|{'--:|' * len(names)}")
    for row in found["loads"]:
        print(f"| {' | '.join(f'{value:.4g}' for value in row.values())} |")


if __name__ == "__main__":
    main()
