"""Regions of images by bilinear samples (``image/regions.c``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_SAMPLES", "regions"]

MOST_SAMPLES = 256
"""Of a bin along an axis, where their number is given."""


def regions(
    shape: Sequence[int], nregions: int, size: Sequence[int], *, ratio: int = 0, scale: float = 1.0,
    is_half: bool = True, is_max: bool = False, isa: str | None = None,
) -> KernelCall:  # fmt: skip
    """The mean, or the largest, of bilinear samples in each of `size` bins of regions of images.

    Arguments: src (f32) of `shape` (images, channels, height, width), dense; regions (f32), each x0, y0, x1, y1, which
    are multiplied by `scale`; the image of each (s64); dst (nregions, channels, *size). `ratio` samples for each bin
    and axis, 0: as many as the bin has pixels. `is_half`: a pixel is half a pixel behind its number. Samples more than
    a pixel outside are 0. Tasks: regions.

    InvalidShapeError: there are regions and no images; InvalidArgumentError: a ratio beyond `MOST_SAMPLES`.

    Cost: samples times channels, whatever the regions are: of a bin along an axis at most `ratio` samples, else no more
    than two a pixel of the image lie within it.
    """
    nimages, nchannels, height, width = shape
    if not 0 <= ratio <= MOST_SAMPLES:
        raise InvalidArgumentError(explain("samples of a bin", accepted=f"0 .. {MOST_SAMPLES}", got=ratio))
    if nregions > 0 and nimages == 0:
        raise InvalidShapeError(explain("regions of images", accepted="at least one image", got=0))
    # without a ratio samples are more than half a pixel apart, but for bins of less than one, which have one
    room = [n * ratio if ratio else 2 * (dim + 3) + 3 * n for n, dim in zip(size, (height, width), strict=True)]
    values = {
        "nimages": nimages, "nchannels": nchannels, "height": height, "width": width, "out_height": size[0],
        "out_width": size[1], "ratio": ratio, "is_max": is_max, "room": room, "scale": scale,
        "shift": 0.5 if is_half else 0.0,
    }  # fmt: skip
    scratch_nbytes = record("region_sample").nbytes * sum(room) + 8 * (sum(size) + 2)
    return pack("f32_regions", values, ntasks=nregions, scratch_nbytes=scratch_nbytes, isa=isa)
