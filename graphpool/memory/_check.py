"""Checks and errors that every resource and pool shares."""

from __future__ import annotations

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError, brief, explain

MAX_NBYTES = 2**47
"""The largest request that is handed to an operating system: what a 64-bit process can address."""


def check_request(nbytes: object, alignment: object) -> None:
    """Refuse a request that no resource could serve, before anything is changed.

    Raises InvalidArgumentError where `nbytes` is no count of bytes or `alignment` no power of two up to 1 GiB, and
    OutOfMemoryError beyond what a process can address.
    """
    if not isinstance(nbytes, int) or nbytes < 0:
        raise InvalidArgumentError(explain("nbytes is not a size", accepted="an int >= 0", got=brief(nbytes)))
    if not isinstance(alignment, int) or not 0 < alignment <= 2**30 or alignment & (alignment - 1):
        raise InvalidArgumentError(
            explain("alignment is not usable", accepted="a power of two from 1 to 2**30", got=brief(alignment)),
            alignment=alignment,
        )
    if nbytes > MAX_NBYTES:
        raise out_of_memory(nbytes, in_use=0, limit=MAX_NBYTES, resource="address space")


def check_resource(what: str, value: object) -> None:
    """Refuse what has no allocate and deallocate, naming the argument.

    As isinstance asks it of the protocol, without the 20 us that this takes in Python 3.11.
    """
    if not all(callable(getattr(value, name, None)) for name in ("allocate", "deallocate")):
        got = type(value).__name__
        raise InvalidArgumentError(explain(what, accepted="an object with allocate and deallocate", got=got))


def out_of_memory(
    requested: int,
    *,
    in_use: int,
    limit: int,
    resource: str,
    smallest_limit: int | None = None,
    holdings: dict[str, int] | None = None,
    hint: str | None = None,
) -> OutOfMemoryError:
    """The error for a request that does not fit; all sizes in bytes; `holdings` tells what the bytes in use are."""
    what = f"{resource} cannot supply {requested} bytes"
    kinds = [f"{name} {nbytes}" for name, nbytes in (holdings or {}).items() if nbytes]
    held = f" ({', '.join(kinds)})" if kinds else ""
    if smallest_limit is not None and hint is None:
        hint = f"the smallest limit that serves this request is {smallest_limit} bytes"
    return OutOfMemoryError(
        explain(what, accepted=f"up to {limit} bytes in all", got=f"{in_use} bytes in use{held}", hint=hint),
        requested=requested,
        in_use=in_use,
        limit=limit,
        resource=resource,
        smallest_limit=smallest_limit,
        holdings=holdings,
    )


def not_held(resource: str, address: object, nbytes: object) -> StateError:
    """The error for giving back what was never given, or was given back already."""
    place = hex(address) if isinstance(address, int) else brief(address)
    return StateError(
        explain(
            f"{resource} does not hold {brief(nbytes)} bytes at {place}",
            accepted="exactly what allocate returned, once",
            hint="it was freed twice, or belongs to another resource",
        ),
        address=address,
        nbytes=nbytes,
        resource=resource,
    )
