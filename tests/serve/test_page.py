"""The page in a real browser: what a person sees, clicks and types, in both widths and both lights."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.serve.browser import Browser, browser, needs_browser
from tests.serve.conftest import write_run
from tests.serve.test_server import Served
from tests.tiny import CLASS_NAMES, tiny_graph

pytestmark = needs_browser
EVIL = "<img src=x onerror=window.hurt=1>"
IDS = [EVIL, *(f'n,"{number}" ü' for number in range(1, 60))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # 3 epochs leave some predictions wrong.
    run = write_run(tmp_path_factory.mktemp("page"), tiny_graph(unlabelled=6, node_ids=IDS), max_epochs=3)
    with Served(run) as made:
        made.wait_until_ready()
        yield made


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def page(tab: Browser, served: Served) -> Iterator[Browser]:
    """The page on a wide screen, with a node open; afterwards nothing must have gone wrong in it."""
    tab.look_as(1280)
    show(tab, served)
    yield tab
    assert tab.problems == []
    assert {url.split("/")[2] for url in tab.requests if "//" in url} == {f"127.0.0.1:{served.port}"}


def show(tab: Browser, served: Served, node: str = 'n,"3" ü') -> None:
    tab.open("about:blank")
    tab.requests.clear()
    tab.problems.clear()
    tab.open(f"{served.url}#node={quote(node)}")
    settle(tab, node)


def settle(tab: Browser, node: str) -> None:
    tab.wait_for(f"document.getElementById('node-title').textContent === {json.dumps(node)}")
    tab.wait_for("document.querySelector('#tokens .weight') && document.getElementById('drawing-wait').hidden")
    tab.wait_for("document.getElementById('map-wait').hidden && document.querySelector('#list a')")


def api(served: Served, path: str) -> Any:
    status, body = served.get(path)
    assert status == 200
    return json.loads(body)


# ---------------------------------------------------------------- what is there


def test_a_node_is_shown(page: Browser, served: Served) -> None:
    expected = api(served, f"/api/predict?id={quote(IDS[3])}")
    assert page.text("#run-name") == "tiny"
    assert "60 nodes" in page.text("#run-facts")
    assert expected["predicted"] in page.text("#node-verdict")
    bars = page.text("#probabilities")
    assert all(name in bars for name in CLASS_NAMES)
    best = sorted(expected["probabilities"], reverse=True)
    shown = page.run(
        "[...document.querySelectorAll('#probabilities .track i')].map(e => e.style.getPropertyValue('--w'))"
    )
    assert [float(each.rstrip("%")) for each in shown] == pytest.approx([100 * share for share in best])
    explained = api(served, f"/api/explain?id={quote(IDS[3])}")
    assert page.run("document.querySelectorAll('#tokens > li').length") == min(12, len(explained["tokens"]))
    first = explained["tokens"][0]
    assert (page.text("#tokens li:first-child .path").split("→") if first["path"] else []) == first["path"]
    assert page.run("document.querySelectorAll('#neighbours a').length") == expected["degree"]
    assert page.run("document.querySelectorAll('#drawing canvas').length") > 0


def test_names_are_text_and_nothing_else(page: Browser, served: Served) -> None:
    show(page, served, EVIL)
    assert page.text("#node-title") == EVIL
    page.press("l")
    page.wait_for("!document.getElementById('panel-list').hidden")
    assert page.run("document.querySelector('img') === null && window.hurt === undefined")


def test_an_unknown_node_is_told_and_another_one_opened(tab: Browser, served: Served) -> None:
    tab.look_as(1280)
    tab.open("about:blank")
    tab.open(f"{served.url}#node=nobody")
    tab.wait_for("!document.getElementById('notice').hidden")
    assert "no node 'nobody'" in tab.text("#notice")
    tab.wait_for("document.querySelector('#tokens .weight')")
    tab.problems.clear()  # the browser logs the 404


# ---------------------------------------------------------------- ways about


def test_search(page: Browser, served: Served) -> None:
    page.press("/")
    for letter in '"58':
        page.press(letter)
    page.wait_for("!document.getElementById('hits').hidden && document.querySelector('#hits .id')")
    assert page.text("#hits .id") == IDS[58]
    page.press("ArrowDown")
    page.press("Enter")
    settle(page, IDS[58])
    assert page.run("decodeURIComponent(location.hash)") == f"#node={IDS[58]}"
    page.press("b")
    settle(page, IDS[3])


def test_an_empty_search_opens_nothing(page: Browser) -> None:
    page.press("/")
    for letter in '"58':
        page.press(letter)
    page.press("Enter")
    settle(page, IDS[58])
    page.press("b")
    settle(page, IDS[3])
    page.press("/")
    page.press("Enter")
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.text("#node-title") == IDS[3]


def test_skipping_to_the_node_keeps_its_address(page: Browser) -> None:
    page.run("document.querySelector('.skip').focus()")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "node-title"
    assert page.run("decodeURIComponent(location.hash)") == f"#node={IDS[3]}"


def test_a_confusion_matrix_that_failed_is_asked_for_again(page: Browser) -> None:
    page.run("window.theirs = window.fetch; window.fetch = () => Promise.reject(new Error('down')); null")
    page.press("c")
    page.wait_for("!document.getElementById('notice').hidden")
    assert "Is it still running?" in page.text("#notice")
    page.run("window.fetch = window.theirs; null")
    page.press("m")
    page.press("c")
    page.wait_for("document.querySelector('#confusion table')")


def test_keys_in_the_drawing_walk_on(page: Browser) -> None:
    page.press("g")
    page.press("ArrowUp")
    there = page.text("#drawing-here").split(": ")[0]
    neighbours = page.run("[...document.querySelectorAll('#neighbours a')].map(e => e.innerText.trim())")
    assert there in neighbours
    page.press("ArrowRight")
    page.press("ArrowLeft")
    page.press("Enter")
    settle(page, there)


def test_a_click_in_the_drawing_walks_on(page: Browser) -> None:
    left, top, width, height = page.run(
        "(({x, y, width, height}) => [x, y, width, height])(document.getElementById('drawing').getBoundingClientRect())"
    )
    for y, x in itertools.product(
        range(int(top) + 20, int(top + height), 12), range(int(left), int(left + width) - 60, 12)
    ):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        there = page.text("#drawing-here").split(": ")[0]
        if there in IDS and there != IDS[3]:  # until the mouse is on a node
            page.click(x, y)
            settle(page, there)
            return
    raise AssertionError("the mouse met no node")


def test_the_map_is_picked_from(page: Browser) -> None:
    page.run("document.getElementById('map-canvas').focus()")
    page.press("ArrowDown")
    page.press("ArrowUp")
    page.press("ArrowRight")
    there = page.text("#map-here").split(": ")[0]
    assert there in IDS
    assert there != IDS[3]
    page.press("Enter")
    settle(page, there)
    before = page.screenshot()
    page.press("+")
    assert page.screenshot() != before


def test_statuses_filter_list_and_map(page: Browser, served: Served) -> None:
    page.press("l")
    for status in ("wrong", "uncertain", "right", "unlabelled"):
        total = api(served, f"/api/nodes?status={status}")["total"]
        chips = "[...document.querySelectorAll('#statuses button')]"
        chip = f"{chips}.find(e => e.innerText.toLowerCase().startsWith('{status}'))"
        if not total:
            assert page.run(f"{chip} === undefined")
            continue
        page.run(f"{chip}.click()")
        page.wait_for(f"document.getElementById('list-count').innerText.startsWith('{total} node')")
        assert page.run(f"{chip}.getAttribute('aria-pressed')") == "true"
        assert page.run("document.querySelectorAll('#list a').length") == total
    page.press("n")
    page.wait_for("document.querySelector('#list a[aria-current]')")
    assert page.text("#list a[aria-current] .id") == page.text("#node-title")


def test_cells_of_the_confusion_matrix_open_their_nodes(page: Browser, served: Served) -> None:
    page.press("c")
    page.wait_for("document.querySelector('#confusion td button:not(:disabled)')")
    assert page.run("document.querySelectorAll('#confusion td').length") == 9
    label = str(page.run("document.querySelector('#confusion td button:not(:disabled)').getAttribute('aria-label')"))
    number = int(re.match(r"\d+", label)[0])  # type: ignore[index]
    page.click_on("#confusion td button:not(:disabled)")
    page.wait_for(f"document.getElementById('list-count').innerText.startsWith('{number} node')")
    assert not page.run("document.getElementById('panel-list').hidden")
    assert page.run("document.querySelectorAll('#filters .on').length") == 2


def test_weights_by_attention(page: Browser, served: Served) -> None:
    page.run("document.getElementById('method').value = 'attention'")
    page.run("document.getElementById('method').dispatchEvent(new Event('change'))")
    page.wait_for("document.getElementById('tokens-about').innerText.startsWith('The readout')")
    page.wait_for("document.querySelector('#tokens .weight')")
    explained = api(served, f"/api/explain?id={quote(IDS[3])}&method=attention")
    assert page.text("#tokens li:first-child .number") == f"{explained['tokens'][0]['importance']:.3f}"


def test_a_model_without_tokens_says_so(page: Browser) -> None:
    page.run(
        """window.theirs = window.fetch; window.fetch = async (address, options) => {
          const answer = await window.theirs(address, options);
          if (!address.startsWith("/api/explain")) return answer;
          const body = { ...(await answer.json()), tokens: [], parts: [], neighbours: [] };
          return new Response(JSON.stringify(body));
        }; null"""
    )
    page.run("document.getElementById('method').value = 'rollout'")
    page.run("document.getElementById('method').dispatchEvent(new Event('change'))")
    page.wait_for("document.querySelector('#tokens li').textContent.includes('no walk- and no hop-token')")


def test_help_and_lights(page: Browser) -> None:
    page.press("?")
    assert page.run("document.getElementById('help-dialog').open")
    page.click_on("#help-dialog button")
    assert not page.run("document.getElementById('help-dialog').open")
    colours = []
    for _ in range(3):
        page.press("t")
        colours.append(page.run("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)", "rgb(255, 255, 255)"]  # the system's is light here


# ---------------------------------------------------------------- widths and lights


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits(tab: Browser, served: Served, width: int, scheme: str, tmp_path: Path) -> None:
    tab.look_as(width, 844, scheme)
    for node in (IDS[3], EVIL):
        show(tab, served, node)
        for key in "mcl":
            tab.press(key)
            tab.wait_for("document.querySelector('[role=tabpanel]:not([hidden])').innerText.length > 20")
            assert tab.run("document.documentElement.scrollWidth") <= width
            # Nothing sticks out of its card, and no card covers another.
            boxes = "[...document.querySelectorAll('.card, .pick, .node-head, .bar')]"
            assert tab.run(f"{boxes}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.className)") == []
    ink, paper = tab.run("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    assert contrast(ink, paper) > 7
    picture = tab.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert tab.problems == []


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two rgb(…) colours."""

    def light(colour: str) -> float:
        parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)


HAS_TEXT = """(e) => e.checkVisibility() && !e.disabled
  && [...e.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())"""
COLOURS = """(e) => {
  const paper = (each) => getComputedStyle(each).backgroundColor;
  let behind = e;
  while (behind !== document.body && /, 0\\)|transparent/.test(paper(behind))) behind = behind.parentElement;
  return [e.className || e.id || e.tagName, getComputedStyle(e).color, paper(behind)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(tab: Browser, served: Served, scheme: str) -> None:
    """Every piece of text stands out from what is behind it, by WCAG's 4.5 to 1."""
    tab.look_as(1280, 900, scheme)
    show(tab, served)
    found = tab.run(f"[...document.querySelectorAll('body *')].filter({HAS_TEXT}).map({COLOURS})")
    assert len(found) > 50
    poor = [(name, ink, paper) for name, ink, paper in found if "color" not in paper and contrast(ink, paper) < 4.5]
    assert poor == []


def test_the_apis_page(tab: Browser, served: Served) -> None:
    tab.look_as(390)
    tab.problems.clear()
    tab.open(f"http://127.0.0.1:{served.port}/docs")
    tab.wait_for("document.querySelectorAll('details.operation').length === 11")
    tab.run("document.querySelectorAll('details.operation').forEach(e => { e.open = true; })")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    for path in ("/api/predict", "/api/predict/new", "/api/explain", "/api/nodes"):
        all_of_them = "[...document.querySelectorAll('details.operation')]"
        form = f"{all_of_them}.filter(e => e.querySelector('code').innerText === '{path}')"
        for number in range(int(tab.run(f"{form}.length"))):
            tab.run(f"{form}[{number}].querySelector('form').requestSubmit()")
            tab.wait_for(f"{form}[{number}].querySelector('pre').innerText.length > 3")
            answer = str(tab.run(f"{form}[{number}].querySelector('pre').innerText"))
            if path == "/api/predict/new":
                assert "predictions" in answer
            assert answer.startswith("{"), answer
    assert tab.problems == []


def test_a_token_is_taken_from_the_address(tab: Browser, served: Served) -> None:
    tab.look_as(1280)
    tab.open("about:blank")
    tab.open(f"{served.url}#token=abc&node={quote(IDS[4])}")
    settle(tab, IDS[4])
    assert tab.run("location.hash.includes('token')") is False
    assert tab.run("sessionStorage.getItem('tokenphormer-token')") == "abc"
    tab.run("sessionStorage.clear()")
    assert not any("abc" in url.split("#")[0] for url in tab.requests)
