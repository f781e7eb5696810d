"""Buffers and plans as CSV files, in the columns that MiniMalloc's benchmarks use."""

import csv

COLUMNS = ("id", "lower", "upper", "size", "alignment", "offset", "gaps")


def write_csv(path, buffers, plan=None):
    """Write buffers, and with a plan their offsets, so that `read_csv` gives them back."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in buffers:
            offset = plan.offsets[item.id] if plan else item.offset
            gaps = " ".join(f"{lower}-{upper}" for lower, upper in item.gaps)
            place = "" if offset is None else offset
            writer.writerow([item.id, item.lower, item.upper, item.size, item.alignment, place, gaps])
