"""The runner `tmux`: a text that did not reach the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from contract.panes import Panes
from contract.runner_suite import in_limited_loop
from the_loop.core.model import Verdict
from the_loop.runners import units
from the_loop.runners.tmux import TmuxRunner
from the_loop.runners.tmux_session import Session, new_number, session_name


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Panes]:
    with mock.patch.object(units, "find_units", return_value=None):
        bench = Panes(tmp_path)
        try:
            yield bench
        finally:
            bench.close()


@in_limited_loop
async def test_text_when_it_did_not_reach_the_server_is_not_noted_as_typed(bench: Panes) -> None:
    offer = bench.put()
    runner = bench.build()
    assert (await runner.deliver(offer)).verdict is Verdict.DELIVERED
    assert isinstance(runner, TmuxRunner)
    session = Session(runner._server, session_name(offer.ref))
    known = await session.state()
    assert known is not None
    state, look = await session.look(known.pane)

    after = await session.paste(state, new_number(), b"", look, label="x")  # of nothing tmux makes no buffer

    assert after is not None
    assert after.typed == state.typed
