import pickle
import subprocess
import sys

import numpy as np
import pytest

from graphpool import config
from graphpool._kernels.core import _dispatch
from graphpool.errors import InvalidArgumentError, UnsupportedError
from tests.helpers.products import matmul

ORDER = ["generic", "neon", "neon_dotprod", "avx2", "avx2_vnni", "avx512", "avx512_bf16", "avx512_amx"]


def _unit():
    return matmul((), 1, 1, 1, (1, 1), (1, 1), (1,), impl="simd")


def test_isas_are_ordered_from_the_weakest():
    isas = _dispatch.isas()
    assert isas[0] == "generic"
    assert isas == [name for name in ORDER if name in isas]


def test_every_isa_has_the_same_kernels():
    assert len({tuple(_dispatch.names(isa)) for isa in _dispatch.isas()}) == 1


@pytest.mark.parametrize("isa", _dispatch.isas())
def test_lookup_gives_the_kernel_of_the_isa(isa):
    kernel = _dispatch.lookup("f32_matmul_simd", isa)
    assert (kernel.name, kernel.isa) == ("f32_matmul_simd", isa)
    assert repr(kernel) == f"<Kernel f32_matmul_simd__{isa}>"
    assert kernel.params_nbytes % 8 == 0


def test_lookup_prefers_the_strongest_isa():
    assert _dispatch.lookup("f32_matmul_simd").isa == _dispatch.isas()[-1]


def test_lookup_names_what_is_missing():
    with pytest.raises(UnsupportedError, match="no kernel f32_nothing"):
        _dispatch.lookup("f32_nothing")
    with pytest.raises(UnsupportedError, match="instruction set z80"):
        _dispatch.lookup("f32_matmul_simd", "z80")


def test_kernel_pickles_by_name():
    kernel = _dispatch.lookup("f32_matmul_simd")
    assert pickle.loads(pickle.dumps(kernel)) is kernel


def test_call_refuses_a_short_parameter_block():
    unit = _unit()
    out = np.zeros(1, np.float32)
    with pytest.raises(InvalidArgumentError, match="parameter block of f32_matmul_simd"):
        _dispatch.call(unit.kernel, unit.params[:8], (out, out, out), 0, 1)


def test_call_refuses_too_many_arguments():
    unit = _unit()
    with pytest.raises(InvalidArgumentError, match="at most 80"):
        _dispatch.call(unit.kernel, unit.params, [0] * 81, 0, 1)


def test_call_takes_addresses_and_arrays():
    unit = _unit()
    a, b, out = (np.full(1, value, np.float32) for value in (3, 4, 0))
    _dispatch.call(unit.kernel, unit.params, (a.ctypes.data, b, out.ctypes.data), 0, 1, unit.scratch_nbytes)
    assert out[0] == 12


def test_call_refuses_what_has_no_contiguous_buffer():
    unit = _unit()
    out = np.zeros(4, np.float32)
    with pytest.raises((BufferError, ValueError)):
        _dispatch.call(unit.kernel, unit.params, (out, out, out[::2]), 0, 1, unit.scratch_nbytes)


@pytest.mark.native
def test_max_isa_variable_caps_the_list():
    code = "from graphpool._kernels.core import _dispatch as d; print(d.isas(), d.lookup('f32_matmul_simd').isa)"
    environment = {"GRAPHPOOL_MAX_ISA": "generic", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("]")[1].strip() == "generic"
    assert "avx" not in done.stdout


def test_a_cap_that_the_processor_lacks_allows_what_is_weaker(monkeypatch):
    monkeypatch.setattr(_dispatch, "_BUILT", ["generic", "avx2", "avx2_vnni", "avx512"])
    monkeypatch.setattr(_dispatch, "_TABLES", dict.fromkeys(["generic", "avx2", "avx512"]))
    monkeypatch.setitem(config._values, "max_isa", "avx2_vnni")
    assert _dispatch.isas() == ["generic", "avx2"]
