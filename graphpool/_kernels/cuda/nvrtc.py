"""CUDA C++ to cubins by NVRTC, which needs no device; what was compiled is kept in a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool import config
from graphpool.errors import BackendError, UnsupportedError, explain

if TYPE_CHECKING:
    from .source import CudaKernel

__all__ = ["compile_cubin", "cubin_folder", "find_cubin"]

OPTIONS = (b"--std=c++17",)

_DIGEST_NBYTES = 32


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        hint = "install the extra: pip install 'graphpool[cuda]', or graphpool[cuda12] for CUDA 12"
        raise UnsupportedError(explain("GPU kernels need cuda-bindings and NVRTC", hint=hint)) from error
    return nvrtc


def _check(nvrtc: Any, result: tuple[Any, ...], what: str) -> Any:
    error, *values = result
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(explain(f"{what} failed", got=error.name), call=what, nvrtc_error=error.name)
    return values[0] if len(values) == 1 else None


def cubin_folder() -> Path | None:
    """Where cubins are kept: ``GRAPHPOOL_CUBIN_FOLDER``, else ``graphpool`` in the user's cache folder, if any."""
    folder = config.get("cubin_folder") or config.cache_folder()
    return None if folder is None else Path(folder)


def find_cubin(kernel: CudaKernel, architecture: int) -> bytes:
    """The cubin of a kernel for an architecture (90 for sm_90), from the folder, or compiled and put there.

    Its file is named by a digest of the text, the architecture, the options and the version of NVRTC, and begins with a
    digest of the rest: what is damaged is compiled anew. A folder that cannot be written is not used.

    Raises
    ------
    UnsupportedError
        cuda-bindings is not installed.
    BackendError
        NVRTC refuses the text, or does not know the architecture.
    """
    nvrtc = _nvrtc()
    _, *version = nvrtc.nvrtcVersion()
    facts = [kernel.text, str(architecture), repr(OPTIONS), repr(version)]
    name = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    folder = cubin_folder()
    if folder is None:
        return compile_cubin(kernel, architecture)
    path = folder / f"{name}.cubin"
    with suppress(OSError):
        content = path.read_bytes()
        digest, found = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
        if hashlib.sha256(found).digest() == digest:
            return found
    cubin = compile_cubin(kernel, architecture)
    with suppress(OSError):
        _keep(path, hashlib.sha256(cubin).digest() + cubin)
    return cubin


def _keep(path: Path, content: bytes) -> None:
    """Write a file that nobody ever sees in part."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def compile_cubin(kernel: CudaKernel, architecture: int) -> bytes:
    """Compile a kernel.

    Raises
    ------
    UnsupportedError, BackendError
        As `find_cubin`; ``log`` of a BackendError has what NVRTC says.
    """
    nvrtc = _nvrtc()
    program = _check(
        nvrtc, nvrtc.nvrtcCreateProgram(kernel.text.encode(), b"kernel.cu", 0, [], []), "nvrtcCreateProgram"
    )
    try:
        options = [b"--gpu-architecture=sm_%d" % architecture, *OPTIONS]
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize"))
            nvrtc.nvrtcGetProgramLog(program, log)
            text = bytes(log).rstrip(b"\0").decode(errors="replace")
            what = f"NVRTC could not compile {kernel.entry} for sm_{architecture}"
            raise BackendError(explain(what, got=text.strip()[:500]), kernel=kernel.entry, log=text)
        cubin = bytearray(_check(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize"))
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
