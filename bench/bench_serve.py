"""Question: does the service hold its deadline, its memory and all requests at twice what it can do?

    python -m bench.bench_serve [seconds] [connections] [--json]

First a few connections, each with one request at a time, tell the capacity. Then many connections send twice as much,
at times drawn at random, and a refused request is not sent again. Every request is counted by its answer. The service
is a process of its own; clients are threads of this one, and share the processor with it.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import numpy as np

from graphpool import demo

ROWS = 64
DEADLINE_S = 2.0
MOST_REQUESTS = 64


class Service:
    """The command ``graphpool serve``, until the block ends; `report` is what it printed then."""

    def __enter__(self):
        line = [
            sys.executable, "-m", "graphpool", "serve", str(demo.model_path("digits_transformer")), "--json",
            "--port", "0", "--memory-limit", "64MiB", "--shape", f"batch=1..{ROWS}", "--join", "batch",
            "--deadline-s", str(DEADLINE_S), "--max-requests", str(MOST_REQUESTS),
        ]  # fmt: skip
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = int(self._process.stderr.readline().rsplit(":", 1)[1])
        return self

    def __exit__(self, *exc_info):
        self._process.terminate()
        output, errors = self._process.communicate()
        self.report = json.loads(output) | {"status": self._process.returncode, "errors": errors}

    @property
    def resident_nbytes(self):
        """Memory of the service that is in RAM."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def live(self):
        """What its page shows."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/live.json")
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found


def message():
    """A request of some rows as binary data: body and headers."""
    images = np.ascontiguousarray(np.resize(demo.test_images()[0], (8, 1, 8, 8)))
    entry = {"name": "image", "shape": list(images.shape), "datatype": "FP32"}
    head = json.dumps({"inputs": [entry | {"parameters": {"binary_data_size": images.nbytes}}]}).encode()
    return head + images.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def ask(connection, body, headers):
    """The answer to a request; once more on another connection if the service had closed an idle one."""
    for attempt in range(2):
        try:
            connection.request("POST", "/v2/models/digits_transformer/infer", body, headers)
            answer = connection.getresponse()
        except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            connection.close()
            if attempt:
                raise
        else:
            answer.read()
            return answer


def client(port, end_s, mean_gap_s, seed, answers):
    """Send requests on one connection, and note status and seconds of each answer."""
    rng, (body, headers) = random.Random(seed), message()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    due_s = time.perf_counter() + rng.random() * mean_gap_s
    while (start_s := max(due_s, time.perf_counter())) < end_s:
        time.sleep(max(due_s - time.perf_counter(), 0.0))
        start_s = time.perf_counter()
        answer = ask(connection, body, headers)
        answers.append((answer.status, time.perf_counter() - start_s))
        due_s += rng.expovariate(1 / mean_gap_s) if mean_gap_s else 0.0
    connection.close()


def load(service, connections, rate, seconds):
    """Answers to clients that together send so many requests a second, at once where it is None."""
    answers, end_s = [], time.perf_counter() + seconds
    gap_s = connections / rate if rate else 0.0
    threads = [
        threading.Thread(target=client, args=(service.port, end_s, gap_s, k, answers)) for k in range(connections)
    ]
    for thread in threads:
        thread.start()
    sizes = []
    while any(thread.is_alive() for thread in threads):
        sizes.append(service.resident_nbytes)
        time.sleep(0.2)
    return answers, sizes


def measure(seconds, connections):
    """The figures, by name."""
    threading.stack_size(1 << 20)
    with Service() as service:
        warm, _ = load(service, 8, None, max(seconds / 6, 2.0))
        capacity = sum(status == 200 for status, _ in warm) / max(seconds / 6, 2.0)
        before = service.live()["budget"]
        answers, sizes = load(service, connections, 2 * capacity, seconds)
        after = service.live()
    codes = Counter(str(status) for status, _ in warm + answers)
    accepted = sorted(taken for status, taken in answers if status == 200)
    third = max(len(sizes) // 3, 1)
    return {
        "connections": connections,
        "capacity_per_s": capacity,
        "sent_per_s": len(answers) / seconds,
        "answers": dict(Counter(str(status) for status, _ in answers)),
        "p50_ms": accepted[len(accepted) // 2] * 1e3,
        "p99_ms": accepted[int(len(accepted) * 0.99)] * 1e3,
        "deadline_ms": DEADLINE_S * 1e3,
        "lost": sum(service.report["answers"].values()) - sum(codes.values()),
        "resident_first_third_MiB": max(sizes[:third]) / 2**20,
        "resident_last_third_MiB": max(sizes[-third:]) / 2**20,
        "budget_before_nbytes": before["in_use"],
        "budget_after_nbytes": after["budget"]["in_use"],
        "requests_left": after["service"]["requests"],
        "ended_well": service.report["status"] == 0 and not service.report["errors"],
    }


def main():
    parser = argparse.ArgumentParser(description=re.split(r"\n", __doc__)[0])
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    parser.add_argument("connections", type=int, nargs="?", default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.seconds, arguments.connections)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
