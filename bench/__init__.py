"""Benchmarks, one question a file, and the cases that they share with the tests.

graphs.py       GraphBuilder: graphs in a few lines; random content
workloads.py    CASES: one row for each thing that the CPU backend lowers; tests check it, benchmarks time it
bench_*.py      one question each, stated in its first line: pytest bench/bench_x.py
"""
