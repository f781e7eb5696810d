"""To come."""
from .graph import DependencyGraph
