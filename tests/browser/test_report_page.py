"""The page of `the-loop report` in a browser: fits, is readable, loads nothing and runs nothing. `make test-page`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from support.browser import Browser
from support.life import new_root
from the_loop.cli import cli
from the_loop.core.model import Note, timestamp
from the_loop.durable import to_json_bytes
from the_loop.eventlog import JsonLog, compose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES: Final = ["github:octo/squeaky-doors#1", "directory:inbox/<script>document.title='owned'</script>", "x" * 200]
WIDTHS: Final = [320, 390, 1280]

# Elements that stick out to the right, and are not in a part that scrolls by itself.
OUTSIDE: Final = """
[...document.querySelectorAll('body *')]
    .filter(one => !one.closest('.scroll *') && one.getBoundingClientRect().right > innerWidth + 0.5)
    .map(one => one.outerHTML.slice(0, 200))
"""
OPENED: Final = "document.querySelectorAll('details').forEach(one => one.open = true)"
SMALLEST: Final = """
Math.min(...[...document.querySelectorAll('body *')].filter(one => one.innerText).map(
    one => parseFloat(getComputedStyle(one).fontSize)))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with something in each part."""
    root = new_root(tmp_path_factory.mktemp("report"))
    now = time.time()
    for number in range(60):
        ref = NAMES[number % 3]
        name = ("poll.comment_forwarded", "poll.comment_failed", "dispatch.uncertain", "source.failed")[number % 4]
        fields = {"ref": ref, "key": f"comment:{number}", "reason": "y" * 300, "attempt": 1, "source": "work"}
        JsonLog(root.logs / "events.jsonl").write(compose(Note(name, fields), now - 80_000 + 1000 * number))
    source = {"provider": "github", "items": 5, "owed": 2, "waiting": 1, "lastGoodAt": timestamp(now - 900)}
    waits = [
        {"since": since, "source": "work", "kind": kind, "counts": [1, 8, 2, 1], "seconds": 60}
        for since in ("created", "accepted")
        for kind in ("review_comment", "spawn")
    ]
    beat = {
        "writtenAt": timestamp(now),
        "sources": [
            {**source, "name": "work", "state": "failing", "error": "z" * 300},
            {**source, "name": "w" * 100, "state": "ok"},
        ],
        "attention": [{"ref": ref, "state": "held", "reason": "why", "command": "the-loop " * 9} for ref in NAMES],
        "counters": {"limits": [1, 60, 3600], "waits": waits},
    }
    root.heartbeat.write_bytes(to_json_bytes(beat))
    output = root.path / "report.html"
    done = CliRunner().invoke(cli, ["--state-root", str(root.path), "report", "--output", str(output)])
    assert done.exit_code == 0
    return output


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


def test_watch_when_a_page_is_as_it_must_not_be_then_it_is_seen(browser: Browser, tmp_path: Path) -> None:
    """What the tests below look for is found where it is."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'"><p style="font-size:9px">x'
        '<div style="position:absolute;left:0;width:4000px">wide</div><script src="other.js"></script>'
    )
    browser.show(bad, width=390)

    assert entries(browser) != []
    bad.write_text('<script src="other.js"></script><div style="width:4000px;font-size:9px">wide</div>')
    browser.show(bad, width=1280)
    assert len(requests(browser)) == 2
    assert len(browser.asks(OUTSIDE)) == 1
    assert browser.asks(SMALLEST) == 9


@pytest.mark.parametrize("width", WIDTHS)
def test_page_when_everything_is_unfolded_then_nothing_sticks_out(browser: Browser, file: Path, width: int) -> None:
    browser.show(file, width=width)
    browser.asks(OPENED)

    assert browser.asks("innerWidth") == width  # a phone would zoom out for a page that is wider
    assert browser.asks("document.documentElement.scrollWidth") <= width
    assert browser.asks(OUTSIDE) == []


def test_page_when_opened_then_loads_nothing_and_no_policy_is_violated(browser: Browser, file: Path) -> None:
    browser.show(file, width=390)

    assert requests(browser) == [file.as_uri()]
    assert entries(browser) == []
    assert browser.asks("document.scripts.length") == 0
    assert browser.asks("document.title").startswith("the-loop: 20")


def test_page_on_a_phone_then_texts_are_large_and_what_is_tapped_is_too(browser: Browser, file: Path) -> None:
    browser.show(file, width=390)
    heights = browser.asks("[...document.querySelectorAll('summary')].map(one => one.offsetHeight)")

    assert min(heights) >= 40
    browser.asks(OPENED)
    assert browser.asks(SMALLEST) >= 14


def test_page_when_the_system_is_dark_then_is_dark_too(browser: Browser, file: Path) -> None:
    colours = []
    for dark in (False, True):
        browser.show(file, width=390, dark=dark)
        colours.append(browser.asks("getComputedStyle(document.body).backgroundColor"))
        bar = browser.asks("getComputedStyle(document.querySelector('.chart .delivered')).fill")
        assert bar not in colours
        colours.append(bar)

    assert colours[0] == "rgb(255, 255, 255)"
    assert len(set(colours)) == 4


def test_bars_when_drawn_then_have_the_heights_of_their_numbers(browser: Browser, file: Path) -> None:
    browser.show(file, width=1280)
    drawn = browser.asks("""
        [...document.querySelectorAll('.chart g')].map(one => one.getBoundingClientRect().height)
    """)

    assert len(drawn) >= 20
    assert max(drawn) == pytest.approx(144, abs=3)  # the highest one fills the drawing, 9rem
    assert browser.asks("document.querySelector('.chart').getBoundingClientRect().width") > 600


def requests(browser: Browser) -> list[str]:
    return [one["params"]["request"]["url"] for one in browser.told if one["method"] == "Network.requestWillBeSent"]


def entries(browser: Browser) -> list[Any]:
    """What is in the console: violations of the policy, errors."""
    names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
    return [one["params"] for one in browser.told if one["method"] in names]
