"""Figures and spans for those who watch a service.

    prometheus.py     Collector: what engines hold and do, and the caches, to scrape
    opentelemetry.py  Instrumentation: the same as metrics, and spans of compilations and runs
    figures.py        the figures, their names and units, and where they are read

The first two need the extra of their name, ``graphpool[prometheus]`` or ``graphpool[opentelemetry]``, when one is made.
Nothing else of graphpool imports this package.
"""
