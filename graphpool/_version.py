"""The version, where every layer, the build and the documentation read it."""

__version__ = "0.1.0"
