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
    for _ in range(2):
        assert match(text)
        assert match.words([f"{text}\n{text}", text], lambda nletters: None, 1, False) == [[text, text], [text]]


@pytest.mark.parametrize("text", ["", "ab", "a" * 3000, "a" * 3000 + "b"])
def test_a_search_tells_of_all_letters_that_it_reads(text):
    told = []
    [words] = compile_pattern("a*b", gp.Limits()).words([text], told.append, 1, False)
    assert words == ([text] if text.endswith("b") else [])
    assert sum(told) >= (len(text) if words else len(text) * (len(text) + 1) // 2)


@settings(max_examples=300, deadline=None)
@given(PATTERNS, st.text("ab1.é\n", max_size=12), st.integers(0, 3), st.booleans())
def test_words_are_the_longest_parts_that_match_or_what_lies_between(pattern, text, least, between):
    """Against Python's engine asked about every part from where a match may begin, the longest first."""
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    at, last, parts, gaps = 0, 0, [], []
    while at < len(text):
        ends = [end for end in range(len(text), at, -1) if matches_within(expected, text, at, end)]
        if ends:
            parts.append(text[at : ends[0]])
            gaps.append(text[last:at])
            last = at = ends[0]
        else:
            at += 1
    wanted = [word for word in ([*gaps, text[last:]] if between else parts) if len(word) >= least]
    [found] = compile_pattern(pattern, gp.Limits()).words([text], lambda nletters: None, least, between)
    assert found == wanted


def matches_within(pattern, text, begin, end):
    """Whether a part of a text matches, with what lies around it in sight of assertions."""
    behind = re.compile(f"(?s:.{{{begin}}})(?:{pattern.pattern})(?=(?s:.{{{len(text) - end}}})\\Z)", re.ASCII)
    found = behind.match(text)
    return found is not None and found.end() == end
