"""The key-value store over HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest
from raftlog_replicated.examples import watch as watch_module
from raftlog_replicated.examples.kv import CODEC, KeyValues, application
from raftlog_replicated.types import Role, Token

from tests.replicated.examples.conftest import Pair, Start
from tests.waiting import until

TOKEN = "X-State-Token"


@pytest.fixture
async def pair(start: Start) -> Pair:
    return await start(KeyValues, CODEC, application)


async def test_put_get_delete(pair: Pair) -> None:
    http, url = pair.http, f"{pair.primary.url}/kv/lunch"
    async with http.get(url) as answer:
        assert answer.status == 404
    async with http.put(url, data="süß") as answer:
        assert (answer.status, await answer.json()) == (200, {"done": True, "before": None})
    async with http.get(url) as answer:
        assert (answer.status, await answer.text()) == (200, "süß")
    async with http.delete(url) as answer:
        assert (answer.status, await answer.json()) == (200, {"done": True, "before": "süß"})
    async with http.get(url) as answer:
        assert answer.status == 404


async def test_a_value_is_text(pair: Pair) -> None:
    async with pair.http.put(f"{pair.primary.url}/kv/lunch", data=b"\xff") as answer:
        assert answer.status == 400


async def test_compare_and_set(pair: Pair) -> None:
    http, url = pair.http, f"{pair.primary.url}/kv/lunch"
    new = {"If-None-Match": "*"}
    async with http.put(url, data="soup", headers=new) as answer:
        assert answer.status == 200
    async with http.put(url, data="rice", headers=new) as answer:
        assert (answer.status, await answer.json()) == (409, {"done": False, "before": "soup"})
    async with http.put(url, data="rice", params={"expected": "stew"}) as answer:
        assert answer.status == 409
    async with http.put(url, data="rice", params={"expected": "soup"}) as answer:
        assert answer.status == 200
    async with http.delete(url, params={"expected": "soup"}) as answer:
        assert answer.status == 409
    async with http.delete(url, params={"expected": "rice"}) as answer:
        assert answer.status == 200


async def test_a_repeated_idempotency_key_writes_once(pair: Pair) -> None:
    http, url = pair.http, f"{pair.primary.url}/kv/lunch"
    key = {"Idempotency-Key": "order-1"}
    for _ in range(2):
        async with http.put(url, data="soup", headers=key) as answer:
            assert await answer.json() == {"done": True, "before": None}
    async with http.put(url, data="soup", headers={"Idempotency-Key": "x" * 129}) as answer:
        assert answer.status == 400


async def test_a_replica_redirects_writes_to_the_primary(pair: Pair) -> None:
    http, path = pair.http, "/kv/a%2Fb?expected=1"
    async with http.put(pair.other.url + path, data="2", allow_redirects=False) as answer:
        assert answer.status == 307
        assert answer.headers["Location"] == pair.primary.url + path
        assert await answer.json()
    async with http.put(f"{pair.other.url}/kv/lunch", data="soup") as answer:
        assert (answer.status, str(answer.url)) == (200, f"{pair.primary.url}/kv/lunch")
    async with http.get(f"{pair.other.url}/kv/lunch?consistency=lease") as answer:
        assert (await answer.text(), str(answer.url.origin())) == ("soup", pair.primary.url)


async def test_without_a_known_primary_the_client_is_to_come_back(pair: Pair) -> None:
    pair.primary.replica._resign()  # its own fence is the last one
    url = f"{pair.primary.url}/kv/lunch"
    async with pair.http.put(url, data="soup", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


async def test_a_token_carries_a_session_to_another_replica(pair: Pair) -> None:
    http = pair.http
    for number in range(20):
        async with http.put(f"{pair.primary.url}/kv/n", data=str(number)) as answer:
            token = answer.headers[TOKEN]
        url = f"{pair.other.url}/kv/n?consistency=session"
        async with http.get(url, headers={TOKEN: token}) as answer:
            assert await answer.text() == str(number)
            seen = Token.parse(answer.headers[TOKEN])
            assert seen.position >= Token.parse(token).position
    async with http.get(url) as answer:  # a session that begins
        assert answer.status == 200
    async with http.get(url, headers={TOKEN: "x"}) as answer:
        assert answer.status == 400


@pytest.mark.parametrize("consistency", ["eventual", "linearizable", "lease", "within:5000"])
async def test_kinds_of_reads(pair: Pair, consistency: str) -> None:
    async with pair.http.put(f"{pair.primary.url}/kv/lunch", data="soup") as answer:
        assert answer.status == 200
    url = f"{pair.primary.url}/kv/lunch?consistency={consistency}"
    async with pair.http.get(url) as answer:
        assert (answer.status, await answer.text()) == (200, "soup")


@pytest.mark.parametrize("consistency", ["strong", "within:", "within:-1", "within:nan", ""])
async def test_an_unknown_kind_of_read_is_refused(pair: Pair, consistency: str) -> None:
    url = f"{pair.primary.url}/kv/lunch?consistency={consistency}"
    async with pair.http.get(url) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]


async def test_members_and_hand_over(pair: Pair) -> None:
    http = pair.http
    await until(lambda: "b" in pair.service.sessions)
    async with http.get(f"{pair.primary.url}/members") as answer:
        primaries = {one["replica_id"]: one["is_primary"] for one in await answer.json()}
    assert primaries == {"a": True, "b": False}
    async with http.post(f"{pair.other.url}/hand-over/b") as answer:  # by the primary
        assert answer.status == 204
    await until(lambda: pair.other.replica.role is Role.PRIMARY)
    async with http.get(f"{pair.other.url}/status") as answer:
        status = await answer.json()
    assert (status["replica"], status["role"], status["term"]) == ("b", "PRIMARY", 2)


async def test_a_watcher_of_a_key_sees_its_changes_on_any_replica(pair: Pair) -> None:
    http = pair.http
    async with http.get(f"{pair.other.url}/watch?key=lunch") as watch:
        for key, value in [("lunch", "soup"), ("drink", "tea"), ("lunch", "rice")]:
            async with http.put(f"{pair.primary.url}/kv/{key}", data=value) as answer:
                assert answer.status == 200
        async with http.put(f"{pair.primary.url}/kv/lunch?expected=x", data="no") as answer:
            assert answer.status == 409
        async with http.delete(f"{pair.primary.url}/kv/lunch") as answer:
            assert answer.status == 200
        lines = [json.loads(await watch.content.readline()) for _ in range(3)]
    assert [(one["key"], one["value"]) for one in lines] == [
        ("lunch", "soup"),
        ("lunch", "rice"),
        ("lunch", None),
    ]
    assert lines[0]["position"] < lines[1]["position"] < lines[2]["position"]
    await until(lambda: not pair.other.replica.machine.changes._watchers)


async def test_a_slow_watcher_ends_with_the_reason(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "WAITING_BYTES_MAX", 200)
    changes = pair.primary.replica.machine.changes
    async with pair.http.get(f"{pair.primary.url}/watch") as watch:
        for number in range(50):
            changes.publish("k", "v" * 50, number)
        lines = (await watch.text()).splitlines()
    assert 0 < len(lines) < 10
    assert [json.loads(line)["position"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert "too slow" in json.loads(lines[-1])["error"]
    assert not changes._watchers


async def test_a_restore_ends_watchers_from_its_thread(pair: Pair) -> None:
    machine = pair.other.replica.machine
    async with pair.http.get(f"{pair.other.url}/watch") as watch:
        await asyncio.to_thread(machine.restore, list(machine.snapshot()))
        assert "restored" in json.loads(await watch.content.readline())["error"]


async def test_there_are_so_many_watchers_at_most(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "WATCHERS_MAX", 1)
    url = f"{pair.primary.url}/watch"
    async with pair.http.get(url) as watch:
        assert watch.status == 200
        async with pair.http.get(url) as refused:
            assert refused.status == 503
