"""Run a log of `LoggingResource` again: ``python -m bench.replay log.csv`` prints time, peak, refusals and leaks."""

import sys
import time

from graphpool.memory import HostResource, StatisticsResource
from tests.cases.resource_log import read_log, replay


def main():
    calls, counted = read_log(sys.argv[1]), StatisticsResource(HostResource())
    start = time.perf_counter()
    found = replay(calls, counted)
    found = {"seconds": time.perf_counter() - start, **found, "peak_nbytes": counted.stats().peak_nbytes}
    for name, value in found.items():
        print(f"{name:16}{value}")


if __name__ == "__main__":
    main()
