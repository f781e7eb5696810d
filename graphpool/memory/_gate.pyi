class Gate:
    """The event count of one pool, or of all pools and caches under one budget."""
