"""The page of a service: its text, and what a browser makes of it."""

import json
import re
import time
from contextlib import contextmanager

import pytest

import graphpool as gp
from graphpool import demo

pytest.importorskip("onnx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from graphpool.serve.page import PAGE
from tests.helpers.browser import Page, find_browser
from tests.helpers.caches import wait_until
from tests.helpers.serving import image_request, running

BROWSER = find_browser()
NAME = "<img src=x onerror=alert(1)>"


@contextmanager
def digits(name):
    """A model under a name, and a service of it."""
    model = gp.onnx.load(demo.model_path("digits_cnn"), threads=1, memory_limit="16MiB")
    with model, running({name: model}) as service:
        yield model, service


def eventually(page, expression, wanted):
    """The value of an expression, once it is as wanted; at most half a minute."""
    end_s = time.monotonic() + 30
    while not wanted(found := page.evaluate(expression)) and time.monotonic() < end_s:
        time.sleep(0.1)
    return found


def test_the_page_stands_alone():
    assert PAGE.count("<script>") == 1
    assert not re.search(r"https?:|@import|url\(|innerHTML|\son\w+=", PAGE)


def test_what_the_page_shows_is_what_the_engine_says():
    with digits("cnn") as (model, service):
        assert service.ask("POST", "/v2/models/cnn/infer", image_request(demo.test_images()[0][:2]))[0] == 200

        def told():
            return json.loads(service.ask("GET", "/live.json")[2])

        # the results of the answer may be there for a moment
        wait_until(lambda: told()["budget"]["in_use"] == model.engine.budget.in_use)
        live = told()
        assert live["budget"]["limit"] == 16 << 20
        [shown] = live["models"]
        assert (shown["name"], shown["uses"]) == ("cnn", 1)
        assert shown["arenas"] == model.engine.models()[0].arenas_nbytes > 0
        _, headers, _ = service.ask("GET", "/")
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.native
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_what_is_live(tmp_path, is_dark):
    with (
        digits(NAME) as (model, service),
        Page(BROWSER, tmp_path / "profile", service.url, is_dark=is_dark) as page,
    ):
        assert eventually(page, "document.getElementById('state').textContent", "ready".__eq__) == "ready"
        cell = "document.querySelector('#models td').textContent"
        assert page.evaluate(cell) == NAME
        uses = "document.querySelectorAll('#models td')[1].textContent"
        assert page.evaluate(uses) == "0"
        model.run({"image": demo.test_images()[0][:2]})
        assert eventually(page, uses, "1".__eq__) == "1"
        assert "limit 16.0 MiB" in page.evaluate("document.getElementById('used').textContent")
        assert page.evaluate("document.getElementById('meter').max") == 16 << 20
        assert page.evaluate("document.getElementById('axes').textContent").endswith(
            "0 at the bottom to 16.0 MiB at the top"
        )
        points = "document.getElementById('line').getAttribute('points').split(' ').length"
        assert eventually(page, points, lambda count: count >= 2) >= 2
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 24, 31)" if is_dark else "rgb(255, 255, 255)")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        service.service.drain()
        assert eventually(page, "document.getElementById('state').textContent", "stopping".__eq__) == "stopping"
        assert page.messages == []
