"""Builds graphpool's extensions: every ``.pyx`` of the package, and the C kernels once per instruction set.

The kernels in the folders of ``graphpool/_kernels`` are compiled once for each entry of ``isas()`` that changes
something in them; only the extension ``graphpool._kernels.core._dispatch`` links them. Everything else lives in
pyproject.toml.
"""

import os
import platform
import re
import shlex
import sysconfig
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from Cython.Build import cythonize
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
KERNELS = Path("graphpool/_kernels")
COMMON_FLAGS = [
    *("-O3", "-std=c11", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wall", "-Wextra"),
    "-MMD",  # writes beside an object, as .d, a rule of make with the source and the headers that it came from
]
HARDENED_FLAGS = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
"""Of the Cython extensions. Kernels go without: their local arrays are accumulators of fixed size that no input
indexes, and functions that compute one tile of a product would write and compare a canary for each tile."""
HARDENED_LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"] if platform.system() == "Linux" else []
DIRECTIVES = {
    "language_level": 3,
    "embedsignature": True,
    "binding": True,
    "freethreading_compatible": True,
    "auto_pickle": False,
}


class InstructionSet(NamedTuple):
    """How kernels are compiled for an instruction set.

    Attributes
    ----------
    flags : list of str
        Of the compiler.
    weaker : str
        The instruction set that it adds to.
    adds : str
        Macros by which sources ask for what it adds, as a regular expression; sources that ask for none of them are
        those of the weaker one. Empty: it changes all of them.
    """

    flags: list[str]
    weaker: str = ""
    adds: str = ""


def isas():
    """Instruction sets to build for on this architecture, weakest first: a dict by name.

    The variable GRAPHPOOL_BUILD_ISAS, names with commas between, leaves out all others but the weakest.
    """
    wanted = os.environ.get("GRAPHPOOL_BUILD_ISAS")
    return {name: isa for name, isa in _known_isas().items() if not wanted or name in f"generic,{wanted}".split(",")}


def _known_isas():
    if platform.machine().lower() in ("x86_64", "amd64"):
        avx2 = ["-mavx2", "-mfma", "-mf16c"]
        avx512 = [*avx2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
        bf16 = [*avx512, "-mavx512vnni", "-mavx512bf16"]
        amx = [*bf16, "-mamx-tile", "-mamx-int8", "-mamx-bf16"]
        return {
            "generic": InstructionSet(["-march=x86-64-v2"]),
            "avx2": InstructionSet(avx2),
            "avx2_vnni": InstructionSet([*avx2, "-mavxvnni"], "avx2", "__AVXVNNI__"),
            "avx512": InstructionSet(avx512),
            "avx512_bf16": InstructionSet(bf16, "avx512", "__AVX512VNNI__|__AVX512BF16__"),
            "avx512_amx": InstructionSet(amx, "avx512_bf16", "__AMX_TILE__"),
        }
    if platform.machine().lower() in ("aarch64", "arm64"):
        return {
            "generic": InstructionSet([]),
            "neon": InstructionSet(["-march=armv8-a+simd"]),
            "neon_dotprod": InstructionSet(["-march=armv8.2-a+dotprod"], "neon", "__ARM_FEATURE_DOTPROD"),
        }
    return {"generic": InstructionSet([])}


@cache
def kernel_homes(isa):
    """For which instruction set the kernels that `isa` runs are compiled, a dict by source: `isa`, or a weaker one.

    The list of tables is compiled for each.
    """
    known, homes = _known_isas(), {}
    for source in kernel_sources():
        name, text = isa, _text_with_headers(source, set())
        while source.name != "tables.c" and known[name].adds and not re.search(known[name].adds, text):
            name = known[name].weaker
        homes[source] = name
    return homes


def kernel_compilations(isas):
    """What is compiled so that these instruction sets have all kernels: sorted pairs, source and instruction set.

    Kernels of a weaker one may call others, whose homes are those for the weaker one.
    """
    known, homes = _known_isas(), set()
    for name in isas:
        while name:
            homes |= set(kernel_homes(name).items())
            name = known[name].weaker
    return sorted(homes)


def kernel_macros(isa):
    """What kernels that are compiled for an instruction set know of it and of the homes of all: names and values."""
    homes = {f"GP_ISA_{source.parent.name}_{source.stem}": home for source, home in kernel_homes(isa).items()}
    return [("GP_ISA", isa), *homes.items()]


def _text_with_headers(path, seen):
    """A source and what it includes of the kernels' headers, each once."""
    if path in seen or not path.exists():
        return ""
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    return text + "".join(_text_with_headers(KERNELS / name, seen) for name in re.findall(r'#include "(.+)"', text))


class BuildWithKernels(build_ext):
    """``build_ext`` that first compiles the kernels for each instruction set.

    Debug information, which the interpreter's own flags ask for, is left out unless ``--debug`` is given: it would be
    four fifths of a wheel.
    """

    def finalize_options(self):
        if self.editable_mode:  # pip's own folders go: what is in them would be compiled again by build_ext --inplace
            usual = Distribution({"ext_modules": self.distribution.ext_modules}).get_command_obj("build")
            usual.ensure_finalized()
            self.build_lib, self.build_temp = usual.build_platlib, usual.build_temp
        super().finalize_options()

    def run(self):
        modules = cythonize(self.extensions, compiler_directives=DIRECTIVES, nthreads=os.cpu_count())
        made = {module.name: module for module in modules}
        for ext in self.extensions:  # here and not in every command: an sdist would write C files into the checkout
            ext.sources, ext.depends = made[ext.name].sources, made[ext.name].depends
        super().run()

    def build_extensions(self):
        self.parallel = self.parallel or os.cpu_count()
        self.debug_flags = [] if self.debug else ["-g0"]
        for ext in self.extensions:
            ext.extra_compile_args += self.debug_flags
        self.compiler.linker_so = _without_rpath(self.compiler.linker_so)
        super().build_extensions()

    def build_extension(self, ext):
        if ext.name == "graphpool._kernels.core._dispatch":
            accepted = [name for name, isa in isas().items() if self._accepts(isa.flags)]
            ext.extra_objects = self._kernel_objects(accepted)
            ext.depends = [*ext.depends, *ext.extra_objects]  # those that a build that ended early has left are newer
            ext.define_macros += [(f"GP_HAVE_{name.upper()}", "1") for name in accepted]
        super().build_extension(ext)

    def _accepts(self, flags):
        """Whether the compiler knows all of these flags."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.c")
            probe.write_text("int main(void) { return 0; }\n")
            try:
                self.compiler.compile([str(probe)], output_dir=folder, extra_postargs=[*flags, "-Werror"])
            except Exception:
                return False
        return True

    def _kernel_objects(self, isas):
        """Compile what the kernels of these instruction sets need; returns the paths of the objects.

        The objects do not depend on the interpreter, so they stay in ``build/kernels`` for every kind of build.
        """
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(self._kernel_object, *zip(*kernel_compilations(isas), strict=True)))

    def _kernel_object(self, source, isa):
        """Compile a source for an instruction set, if that was not done before; returns the path of the object."""
        flags = [*COMMON_FLAGS, *self.debug_flags, *_known_isas()[isa].flags]
        settings = repr((self.compiler.compiler_so, flags, kernel_macros(isa)))
        folder = ROOT / "build" / "kernels" / f"{sysconfig.get_platform()}-{isa}-{zlib.crc32(settings.encode()):08x}"
        [target] = self.compiler.object_filenames([str(source)], output_dir=str(folder))
        if _is_stale(Path(target)):
            self.compiler.compile(
                [str(source)],
                output_dir=str(folder),
                include_dirs=[str(KERNELS)],
                macros=kernel_macros(isa),
                extra_postargs=flags,
            )
        return target


def _is_stale(target):
    """Whether an object is missing, or older than anything that it was compiled from."""
    try:
        _, *sources = shlex.split(target.with_suffix(".d").read_text().replace("\\\n", " "))
        return any(target.stat().st_mtime < Path(source).stat().st_mtime for source in sources)
    except FileNotFoundError:
        return True


def _without_rpath(command):
    """A linker's command without the places where this interpreter's own build looks for libraries."""
    inherited = shlex.split(sysconfig.get_config_var("LDSHARED") or "")
    paths = {part for part in inherited if part.startswith(("-Wl,-rpath", "-Wl,-R"))}
    return [part for part in command if part not in paths]


def kernel_sources():
    """Every C source but those that Cython writes beside its modules."""
    return sorted(path for path in KERNELS.glob("*/*.c") if not path.with_suffix(".pyx").exists())


def extensions():
    for pyx in sorted(Path("graphpool").rglob("*.pyx")):
        name = ".".join(pyx.with_suffix("").parts)
        is_door = name == "graphpool._kernels.core._dispatch"
        kernels = [*kernel_sources(), *sorted(KERNELS.glob("*/*.h"))] if is_door else []
        yield Extension(
            name,
            [str(pyx)],
            include_dirs=[str(KERNELS)],
            depends=[*map(str, kernels), "setup.py"],
            extra_compile_args=["-O2", "-fvisibility=hidden", *HARDENED_FLAGS],
            extra_link_args=HARDENED_LINK,
        )


if __name__ == "__main__":  # processes that Cython starts import this file
    os.chdir(ROOT)
    setup(ext_modules=list(extensions()), cmdclass={"build_ext": BuildWithKernels})
