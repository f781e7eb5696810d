"""Regular expressions without backtracking: the same answers as Python's, and no pattern takes long."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.onnx.expressions import compile_pattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", r"\b", r"\.", "é"])


def combine(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0}", "{1,3}", "{2,}", "*?", "{0,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


PATTERNS = st.recursive(ATOMS, combine, max_leaves=8)


@settings(max_examples=500, deadline=None)
@given(PATTERNS, st.lists(st.text("ab1.é\n", max_size=6), max_size=6))
def test_answers_are_those_of_pythons_engine(pattern, texts):
    match = compile_pattern(pattern, gp.Limits())
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for text in texts:
        assert match(text) == bool(expected.fullmatch(text))


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)(.*)(.*)(.*)(.*)x", "((a?){30}){30}b"])
def test_patterns_that_backtracking_never_ends_on(pattern):
    match = compile_pattern(pattern, gp.Limits())
    assert not match("a" * 200)


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "(?i)a", r"\pL", "[[:alpha:]]", "a**", "*", "(", ")", "[a",
                                     "a{1001}", "a{3,2}", "(" * 60 + ")" * 60, "((a{1000}){1000})"])  # fmt: skip
def test_what_is_refused(pattern):
    with pytest.raises(gp.InvalidArgumentError, match="regular expression"):
        compile_pattern(pattern, gp.Limits())


def test_a_long_pattern_is_refused():
    with pytest.raises(gp.LimitError, match="pattern_length"):
        compile_pattern("a" * 20, gp.Limits(pattern_length=10))


def test_borders_of_words():
    match = compile_pattern(r"www\.[\w.-]+\.\bcom\b", gp.Limits())
    assert [match(text) for text in ("www.a.com", "www.com", "www.a.xcom")] == [True, False, False]
    assert compile_pattern(r"a\Bb\b", gp.Limits())("ab")


@pytest.mark.parametrize("pattern", [r"[^\n]+", r"[^\n]+\b"])
def test_more_letters_than_an_automaton_remembers(pattern):
    match = compile_pattern(pattern, gp.Limits())
    text = "".join(map(chr, range(0x100, 0x3000))) + "x"
    length = len(text)
    for _ in range(2):
        assert match(text)
        spans = match.spans(f"{text}\n{text}", lambda nletters: None)
        assert spans == [(0, length), (length + 1, 2 * length + 1)]


@pytest.mark.parametrize("text", ["", "ab", "a" * 3000, "a" * 3000 + "b"])
def test_a_search_tells_of_all_letters_that_it_reads(text):
    told = []
    spans = compile_pattern("a*b", gp.Limits()).spans(text, told.append)
    assert spans == ([(0, len(text))] if text.endswith("b") else [])
    assert sum(told) >= (len(text) if spans else len(text) * (len(text) + 1) // 2)
