from __future__ import annotations
from support.poller import Box

def test_a(box: Box) -> None:
    ref = box.item("a", "please")
    poller = box.start()
    box.wait(lambda: box.sink.ids(), "the first delivery")
    box.comment("a", "c1")
    box.wait(lambda: len(box.sink.ids()) == 2, "comment")
    box.wait(lambda: not box.pending(), "settled")
    assert poller.stop() == 0
    box.assert_once({ref: ["spawn:1", "comment:c1"]})
