"""graphpool: run neural-network graphs on a CPU inside a memory limit."""
