from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from raftlog_spark import background
from raftlog_spark.background import Background


@pytest.fixture
def running() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


def test_a_long_wait_is_logged_and_goes_on(
    running: Background, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "WAIT_LOGGED_S", 0.01)

    async def until_logged_twice() -> str:
        while caplog.text.count("waiting for raftlog") < 2:  # noqa: ASYNC110  a log has no event
            await asyncio.sleep(0.005)
        return "done"

    with caplog.at_level(logging.WARNING):
        assert running.run(until_logged_twice(), "reading 't'") == "done"
    assert "s: reading 't'" in caplog.text


def test_the_error_of_the_work_is_the_caller_s(
    running: Background, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        running.run(fail(), "failing")
    assert not caplog.text
