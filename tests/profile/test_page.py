"""The page of a picture: its text, and what a browser makes of it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import graphpool as gp
from graphpool import demo
from graphpool.profile.page import _ticks
from graphpool.profile.picture import _find_holes
from tests.helpers.browser import Page, find_browser

pytest.importorskip("onnx")
from tests.cases.two_programs import INPUTS, SCRIPT, two_programs

VOID = {"meta", "link", "input"}


@pytest.fixture(scope="module")
def picture():
    with gp.Engine(threads=2) as engine, gp.onnx.load(two_programs(), engine=engine) as model:
        return gp.profile.footprint(model, INPUTS)


@pytest.fixture(scope="module")
def other():
    with gp.onnx.load(demo.model_path("digits_cnn"), schedule="sequential") as model:
        return gp.profile.footprint(model, {"image": demo.test_images()[0][:8]})


class Checker(HTMLParser):
    """Finds every tag closed where it should be."""

    def __init__(self):
        super().__init__()
        self.open, self.found, self.tips, self.ids = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.tips += [value for name, value in attrs if name == "data-tip"]
        assert all(not name.startswith("on") and name not in ("src", "srcdoc") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_stands_alone(picture):
    page = picture.html()
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.found.count("script") == 1
    assert not re.search(r"https?:|@import|url\((?!#)", page)
    assert len(checker.tips) >= 2 * (len(picture.temporaries) + len(picture.holes) + len(picture.steps))


def test_names_are_text(picture):
    page = picture.html()
    assert SCRIPT not in page
    assert "&lt;script&gt;window.hacked" in page
    assert page.count("<script>") == 1


def test_names_of_inputs_are_text(picture, other):
    stranger = replace(other, model=SCRIPT, settings=f"inputs {SCRIPT} 1x2", parts=other.parts | {SCRIPT: 1})
    for page in (stranger.html(), picture.html(stranger)):
        assert SCRIPT not in page
        assert page.count("<script>") == 1
        assert "inputs &lt;/svg&gt;&lt;script&gt;" in page


def test_a_tip_tells_what_a_rectangle_is(picture):
    checker = Checker()
    checker.feed(picture.html())
    [tip, *_] = [tip for tip in checker.tips if tip.startswith("tensor sum")]
    lines = tip.splitlines()
    assert lines[:4] == [f"tensor sum{SCRIPT}", f"node: add {SCRIPT}", "op: Add", "shape: f32 64x256"]
    assert lines[4].startswith("bytes: 64 KiB (65536 bytes) at offset ")
    assert lines[5].startswith("lifetime: steps 0 to 4, 0 ns to ")


def test_two_runs_are_told_apart(picture, other):
    page = picture.html(other)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert SCRIPT not in page
    first, second = picture.predicted_nbytes, other.predicted_nbytes
    assert f"<td>{first:,}</td><td>{second:,}</td><td>{second - first:+,}</td>" in page
    change = re.search(
        r"The second is predicted to take [\d.]+ KiB, ([\d.]+) KiB \(([\d.]+)%\) less than the first", page
    )
    assert float(change[1]) == pytest.approx((first - second) / 2**10, rel=1e-3)
    assert float(change[2]) == pytest.approx((first - second) / first * 100, abs=0.06)
    assert "as much as the first" in picture.html(picture)
    assert "<td>0</td>" in picture.html(picture)


def test_a_kind_has_one_colour_on_both_sides_and_scales_are_the_same(picture, other):
    half = replace(other, arena_nbytes=picture.arena_nbytes // 2, duration_ns=picture.duration_ns // 2)
    sides = picture.html(half).split("<h2>")[1:3]
    pattern = re.compile(r'style="fill:(hsl[^;"]*)[^>]*?op: (\w+)', re.DOTALL)
    first, second = ({(kind, colour) for colour, kind in pattern.findall(side)} for side in sides)
    assert len(first | second) == len(dict(first | second))
    assert {kind for kind, _ in first & second} >= {"MatMul", "SoftMax"}
    ticks = [re.findall(r'text-anchor="(?:end|middle)">([\d.]+)<', side) for side in sides]
    assert ticks[0] == ticks[1]


@pytest.mark.parametrize("end", [0.5, 1, 3.2, 7, 434.2, 1023, 9e4])
def test_ticks_are_few_and_round(end):
    ticks = _ticks(end)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] <= end
    assert all(len(f"{tick:g}") <= 6 for tick in ticks)


# ---- in a browser

BROWSER = find_browser()
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
OVERLAPS = """(() => {
  const texts = [...document.querySelectorAll("svg text")];
  const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
  const seen = boxes.filter(([_, box]) => box.width);
  return seen.flatMap(([a, p], k) => seen.slice(k + 1)
    .filter(([_, q]) => p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom)
    .map(([b, _]) => a + " | " + b));
})()"""
CUT = """[...document.querySelectorAll("svg text")].filter(text => {
  const own = text.getBoundingClientRect(), svg = text.closest("svg").getBoundingClientRect();
  return own.width && (own.left < svg.left || own.right > svg.right || own.top < svg.top || own.bottom > svg.bottom);
}).map(text => text.textContent)"""


def saved(tmp_path, picture, beside=None):
    path = tmp_path / "page.html"
    picture.save(path, beside)
    return path.as_uri()


@needs_browser
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_rectangle_tells_what_it_is_when_pointed_at(picture, tmp_path, is_dark):
    with Page(BROWSER, tmp_path / "profile", saved(tmp_path, picture), is_dark=is_dark) as page:
        assert page.evaluate("document.getElementById('tip').hidden")
        for view in ("by-time", "by-step"):
            page.evaluate(f"document.getElementById('{view}').click()")
            find = f"""[...document.querySelectorAll('.{view} rect.op')].find(
                rect => rect.dataset.tip.startsWith('tensor sum')).getBoundingClientRect().toJSON()"""
            box = page.evaluate(find)
            page.hover(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
            tip = page.evaluate("document.getElementById('tip').innerText")
            assert tip.startswith(f"tensor sum{SCRIPT}\nnode: add {SCRIPT}\nop: Add\nshape: f32 64x256\nbytes: 64 KiB")
            page.hover(5, 5)
            assert page.evaluate("document.getElementById('tip').hidden")
            page.evaluate(f"document.querySelector('.{view} rect.op').focus()")
            assert not page.evaluate("document.getElementById('tip').hidden")
        assert page.evaluate("typeof window.hacked") == "undefined"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 24, 31)" if is_dark else "rgb(255, 255, 255)")
        assert page.messages == []


@needs_browser
@pytest.mark.parametrize("name", [*demo.MODELS, "two programs", "many steps", "beside"])
def test_labels_neither_overlap_nor_leave_the_picture(name, picture, other, tmp_path):
    shown, beside = picture, other if name == "beside" else None
    if name in demo.MODELS:
        with gp.onnx.load(demo.model_path(name)) as model:
            shown = gp.profile.footprint(model, {"image": demo.test_images()[0][:8]})
    if name == "many steps":  # both axes have a label of several letters at their end
        steps = [replace(picture.steps[0], start_ns=k * 1000, end_ns=(k + 1) * 1000) for k in range(250)]
        shown = replace(picture, steps=tuple(steps), temporaries=(), holes=(), duration_ns=250_000)
    with Page(BROWSER, tmp_path / "profile", saved(tmp_path, shown, beside)) as page:
        for view in ("by-time", "by-step"):
            page.evaluate(f"document.getElementById('{view}').click()")
            assert page.evaluate(OVERLAPS) == []
            assert page.evaluate(CUT) == []
        assert page.messages == []


@needs_browser
def test_a_page_of_thousands_of_temporaries_opens(picture, tmp_path):
    step, tenant, count = picture.steps[0], picture.temporaries[0], 5000
    spans = [{"start_ns": k * 1000, "end_ns": (k + 1) * 1000} for k in range(count)]
    steps = [replace(step, step=k, op=f"layer {k}", **span) for k, span in enumerate(spans)]
    tenants = [replace(tenant, offset=k % 50 * 4096, nbytes=4096, **span) for k, span in enumerate(spans)]
    holes, needed = _find_holes(tenants, 50 * 4096, count * 1000)
    shown = replace(
        picture, steps=tuple(steps), temporaries=tuple(tenants), holes=tuple(holes), duration_ns=count * 1000,
        arena_nbytes=50 * 4096, needed_nbytes=needed,
    )  # fmt: skip
    assert len(shown.html()) < 12e6
    with Page(BROWSER, tmp_path / "profile", saved(tmp_path, shown)) as page:
        assert page.evaluate("document.querySelectorAll('.by-step rect.op').length") == 2 * count
        assert page.messages == []


@needs_browser
def test_a_notebook_shows_the_page_in_a_frame(picture, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body style='margin:0'>{picture._repr_html_()}</body>", encoding="utf-8")
    assert re.fullmatch(r"<FootprintPicture of model .*: \d+ steps, arena [\d.]+ KiB>", repr(picture), re.DOTALL)
    with Page(BROWSER, tmp_path / "profile", path.as_uri()) as page:
        inside = "document.querySelector('iframe').contentDocument"
        find = f"{inside}.querySelector('.by-time rect.op').getBoundingClientRect().toJSON()"
        box = page.evaluate(find)
        page.hover(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.evaluate(f"{inside}.getElementById('tip').innerText").startswith("tensor ")
        assert page.evaluate("typeof document.querySelector('iframe').contentWindow.hacked") == "undefined"
        assert page.messages == []
