"""Run a log of `LoggingResource` again: ``python -m bench.replay log.csv`` prints time, peak, refusals and leaks."""

import argparse
import time

from graphpool.memory import HostResource, StatisticsResource
from tests.cases.resource_log import read_log, replay


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", help="CSV file of a LoggingResource")
    calls, counted = read_log(parser.parse_args().log), StatisticsResource(HostResource())
    start = time.perf_counter()
    found = replay(calls, counted)
    found = {"seconds": time.perf_counter() - start, **found, "peak_nbytes": counted.stats().peak_nbytes}
    for name, value in found.items():
        print(f"{name:16}{value}")


if __name__ == "__main__":
    main()
