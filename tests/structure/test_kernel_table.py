"""Every kernel exists for every instruction set, is named by one grammar, and tests that run on all sets name it."""

import re

import pytest

from graphpool._kernels.core._dispatch import isas, names
from tests.helpers.tree import ROOT

TESTS = {path.name: path.read_text() for path in (ROOT / "tests" / "_kernels").rglob("test_*.py")}
TYPES = "f32", "f64", "bf16", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "x8", "any"
"""x8: bytes of either sign; any: elements that are only moved or compared, whatever they are."""

OPS = (
    "arg_extreme", "attention", "avg_pool", "batch_moments", "batch_norm", "concat", "conv", "copy", "dropout",
    "couple", "eltwise", "gather", "gen_index", "group_norm", "layer_norm", "lookup", "matmul", "max_pool", "nonzero",
    "quantize", "range", "recurrent", "reduce", "regions", "resample", "running", "scatter", "softmax", "suppress",
    "top_k", "tree_ensemble", "triangle",
)  # fmt: skip
VARIANTS = (
    "backward", "blas", "compressed", "depthwise", "dynamic", "fold", "groups", "im2col", "linear", "nearest",
    "numbers", "overlap", "pack", "packed", "plain", "scales", "simd", "unpack", "winograd", "zeros",
)  # fmt: skip
NAME = re.compile(rf"({'|'.join(TYPES)})_({'|'.join(OPS)})((?:_(?:{'|'.join(VARIANTS)}))*)((?:_\d+x\d+)?)")


@pytest.mark.parametrize("kernel", names("generic"))
def test_a_name_is_type_op_variants_and_tile(kernel: str) -> None:
    assert NAME.fullmatch(kernel)


def test_no_word_of_the_grammar_is_left_over() -> None:
    found = [NAME.fullmatch(kernel) for kernel in names("generic")]
    types, ops, variants = (set().union(*[m[k].strip("_").split("_") if k == 3 else {m[k]} for m in found if m])
                            for k in (1, 2, 3))  # fmt: skip
    assert (types, ops, variants - {""}) == (set(TYPES), set(OPS), set(VARIANTS))


@pytest.mark.parametrize("isa", isas())
def test_every_instruction_set_has_every_kernel(isa: str) -> None:
    assert names(isa) == names("generic")


@pytest.mark.parametrize("kernel", names("generic"))
def test_a_test_file_exercises_the_kernel(kernel: str) -> None:
    """One file holds every word of the name but the type, which tests put together from cases."""
    words = kernel.split("_")[1:]
    assert [name for name, text in TESTS.items() if "isas()" in text and all(word in text for word in words)]
