"""Connections between nodes, over real sockets: openings, messages, ends."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
from contextlib import AsyncExitStack
from typing import Any

import pytest

from raftlog.peer import dial
from raftlog.peer import network as peer_network
from raftlog.peer import socket as peer_socket
from raftlog.peer.network import HttpNetwork
from raftlog.world.network import (
    MESSAGE_BYTES_MAX,
    Connection,
    NetworkError,
    Receiver,
    RefusedError,
    RejectedError,
)
from tests.http.http_peers import PATIENCE_S
from tests.waiting import until

from .node_peers import CHANNEL, SECRET, FakeAcceptor, Recorder, connect, node, on_both_loops, pair


def never(_connection: Connection) -> Receiver:
    raise AssertionError("opened, though it must not be")


# Opening


@on_both_loops
async def test_both_sides_learn_the_other_ones_hello() -> None:
    async with pair() as (mine, theirs, callee):
        assert mine.connection.hello == b"hello of the callee"
        assert theirs.connection.hello == b"hello"
        assert callee.acceptor.hellos == [b"hello"]
        assert mine.connection.address == callee.address
        assert theirs.connection.address.startswith("127.0.0.1:")


@on_both_loops
async def test_hellos_may_be_empty_or_64_kib_long() -> None:
    long = bytes(range(256)) * 256
    for hello, answer in ((b"", b""), (long, long)):
        async with node(acceptor=FakeAcceptor(answer)) as callee:
            caller = HttpNetwork([SECRET])
            mine = await connect(caller, callee.address, hello)
            assert (mine.connection.hello, callee.acceptor.hellos) == (answer, [hello])
            await caller.close()


@on_both_loops
async def test_node_that_is_not_ready_takes_connections() -> None:
    async with node() as callee:
        services: Any = callee.server._main.context.broker.services
        services.is_ready = lambda: "The node is starting."
        mine = await connect(callee.network, callee.address)
        mine.connection.send(b"x")
        assert await callee.acceptor.receivers[0].has(1) == [b"x"]


@on_both_loops
async def test_messages_sent_while_opening_arrive_after_it() -> None:
    """Each side sends from within `opened`: before the other side may know of the connection."""

    def talkative(connection: Connection) -> Recorder:
        for number in range(3):
            connection.send(b"%d" % number)
        connection.send(bytes(MESSAGE_BYTES_MAX))
        connection.send(bytes(MESSAGE_BYTES_MAX))
        return Recorder(connection)

    async with node(acceptor=FakeAcceptor(opened_by=talkative)) as callee:
        caller = HttpNetwork([SECRET])
        ends: list[Recorder] = []

        def opened(connection: Connection) -> Recorder:
            ends.append(talkative(connection))
            return ends[0]

        await caller.connect(callee.address, CHANNEL, b"h", opened, timeout_s=PATIENCE_S)
        for end in (ends[0], callee.acceptor.receivers[0]):
            assert [len(m) for m in await end.has(5)] == [1, 1, 1, *[MESSAGE_BYTES_MAX] * 2]
        await caller.close()


@on_both_loops
async def test_messages_of_one_read_are_handed_over_in_several_turns() -> None:
    """Thousands of messages in one read must not hold up the heartbeats of other connections."""
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        counting[0] = asyncio.get_running_loop().call_soon(count)

    counting = [asyncio.get_running_loop().call_soon(count)]
    turns: list[int] = []

    class Slow(Recorder):
        def received(self, message: bytes) -> None:
            turns.append(turn)
            super().received(message)

    with pytest.MonkeyPatch.context() as patch:
        # Each message takes all the time of its turn.
        patch.setattr(peer_socket, "DELIVERY_S", 0.0)
        async with node(acceptor=FakeAcceptor(opened_by=Slow)) as callee:
            caller = HttpNetwork([SECRET])
            mine = await connect(caller, callee.address)
            sent = [b"%d" % number for number in range(200)]
            for message in sent:
                mine.connection.send(message)
            theirs = callee.acceptor.receivers[0]
            assert await theirs.has(200) == sent
            assert len(set(turns)) == 200
            # The connection is read again, up to its end.
            mine.connection.send(b"x")
            mine.connection.send(b"last")
            mine.connection.close()
            await theirs.ends()
            assert theirs.messages[200:] == [b"x", b"last"]
            await caller.close()
    counting[0].cancel()


@on_both_loops
async def test_nobody_listening_is_refused() -> None:
    async with node() as gone:
        address = gone.address
        assert not await gone.network.is_refused(address, timeout_s=PATIENCE_S)
    network = HttpNetwork([SECRET])
    with pytest.raises(RefusedError, match="connection refused at 127"):
        await connect(network, address)
    assert await network.is_refused(address, timeout_s=PATIENCE_S)


@on_both_loops
async def test_name_is_refused_only_if_all_its_addresses_are() -> None:
    async with node() as callee:
        network = HttpNetwork([SECRET])
        address = f"localhost:{callee.port}"
        assert not await network.is_refused(address, timeout_s=PATIENCE_S)
        mine = await connect(network, address)
        await network.close()
        await mine.ends()
    assert await network.is_refused(address, timeout_s=PATIENCE_S)


@on_both_loops
async def test_name_with_an_unreachable_address_is_not_refused() -> None:
    """The process may be alive behind the untried address."""
    async with node() as gone:
        port = gone.port
    refused = (socket.AF_INET, ("127.0.0.1", port))
    unreachable = (socket.AF_INET, ("255.255.255.255", port))  # needs SO_BROADCAST: fails at once
    network = HttpNetwork([SECRET])
    for found in ([refused, unreachable], [unreachable, refused]):

        async def resolve(_host: str, _port: int, found: Any = found) -> Any:
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dial, "_resolve", resolve)
            assert not await network.is_refused(f"name:{port}", timeout_s=PATIENCE_S)
            with pytest.raises(NetworkError, match="cannot be reached") as failed:
                await connect(network, f"name:{port}")
            assert not isinstance(failed.value, RefusedError)


@on_both_loops
async def test_ipv6_literals_are_addresses() -> None:
    async with node(host="::1") as callee:
        network = HttpNetwork([SECRET])
        address = f"[::1]:{callee.port}"
        mine = await connect(network, address)
        mine.connection.send(b"x")
        theirs = callee.acceptor.receivers[0]
        assert await theirs.has(1) == [b"x"]
        assert theirs.connection.address.startswith("[::1]:")
        await network.close()
    assert await network.is_refused(address, timeout_s=PATIENCE_S)


@on_both_loops
async def test_machine_that_does_not_answer_is_a_network_error_and_not_refused() -> None:
    # A full backlog drops connections, like a vanished machine.
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    network = HttpNetwork([SECRET])
    with pytest.raises(NetworkError, match=r"did not answer within 0\.2 s") as failed:
        await network.connect(f"127.0.0.1:{port}", CHANNEL, b"h", never, timeout_s=0.2)
    assert not isinstance(failed.value, RefusedError)
    assert not await network.is_refused(f"127.0.0.1:{port}", timeout_s=0.2)
    for filler in (listener, *fillers):
        filler.close()


@on_both_loops
async def test_peer_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        network = HttpNetwork([SECRET])
        with pytest.raises(NetworkError, match="did not answer within"):
            await network.connect(address, CHANNEL, b"h", never, timeout_s=0.2)
        assert not await network.is_refused(address, timeout_s=PATIENCE_S)
        await until(lambda: not network._openings.callers)


@pytest.mark.parametrize("address", ["", "host", "::1:80", "a b:80", "h:0", "h:99999", "h:1\n"])
async def test_what_is_no_address_is_a_network_error(address: str) -> None:
    network = HttpNetwork([SECRET])
    with pytest.raises(NetworkError):
        await connect(network, address)
    assert not await network.is_refused(address, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000,
        b"",
    ],
)
async def test_server_that_is_no_raftlog_node_is_a_network_error(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NetworkError):
            await connect(HttpNetwork([SECRET]), f"127.0.0.1:{port}")


@on_both_loops
async def test_connection_lost_at_its_first_write_leaves_no_descriptor() -> None:
    """A descriptor closed twice is by the second time another socket's, or a file's."""
    dialled: list[socket.socket] = []

    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patch:

        async def reset(host: str, port: int) -> socket.socket:
            connected = await dial.dial(host, port)
            dialled.append(connected)
            peer, _ = listening.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            has_ended = select.poll()
            has_ended.register(connected, 0)
            assert has_ended.poll(PATIENCE_S * 1_000)
            return connected

        patch.setattr(peer_network, "dial", reset)
        with pytest.raises(NetworkError):
            await connect(HttpNetwork([SECRET]), f"127.0.0.1:{listening.getsockname()[1]}")
        await until(lambda: dialled[0].fileno() == -1)


@on_both_loops
async def test_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    async with node() as callee:
        network = HttpNetwork([SECRET])
        for turns in range(40):
            task = asyncio.create_task(connect(network, callee.address))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                (await task).connection.close()
        await until(lambda: not callee.handed_over and not network._openings.sockets)
        assert all(receiver.closed_count == 1 for receiver in callee.acceptor.receivers)


# Rejections


@on_both_loops
async def test_callers_hello_can_be_rejected_with_words() -> None:
    acceptor = FakeAcceptor(refusal=RejectedError(40903, "Another cluster: älter."))
    async with node(acceptor=acceptor) as callee:
        with pytest.raises(RejectedError, match=r"Another cluster: älter\.") as rejected:
            await callee.network.connect(callee.address, CHANNEL, b"h", never, timeout_s=PATIENCE_S)
        assert rejected.value.code == 40903
        await until(lambda: not callee.handed_over)


@on_both_loops
async def test_callee_can_reject_the_connection_itself() -> None:
    def reject(connection: Connection) -> Receiver:
        connection.send(b"lost")
        raise RejectedError(40903, "Changed my mind.")

    async with node(acceptor=FakeAcceptor(opened_by=reject)) as callee:
        with pytest.raises(RejectedError, match=r"Changed my mind\."):
            await callee.network.connect(callee.address, CHANNEL, b"h", never, timeout_s=PATIENCE_S)
        await until(lambda: not callee.handed_over)


@on_both_loops
async def test_caller_can_reject_after_it_has_read_the_answer() -> None:
    async with node() as callee:

        def reject(connection: Connection) -> Receiver:
            assert connection.hello == b"hello of the callee"
            raise RejectedError(40903, "Not my cluster.")

        with pytest.raises(RejectedError, match=r"Not my cluster\."):
            await callee.network.connect(
                callee.address, CHANNEL, b"h", reject, timeout_s=PATIENCE_S
            )
        await callee.acceptor.receivers[0].ends()


@on_both_loops
async def test_unknown_channel_is_rejected_as_not_ready() -> None:
    async with node() as callee:
        with pytest.raises(RejectedError) as rejected:
            await callee.network.connect(callee.address, "other", b"", never, timeout_s=PATIENCE_S)
        assert rejected.value.code == 50304


@on_both_loops
async def test_other_secret_is_rejected_with_what_to_do_on_either_side() -> None:
    async with node(secret=b"one") as one, node(secret=b"two") as two:
        for caller, callee in ((one, two), (two, one)):
            with pytest.raises(RejectedError, match="RAFTLOG_CLUSTER_SECRET") as rejected:
                await caller.network.connect(
                    callee.address, CHANNEL, b"h", never, timeout_s=PATIENCE_S
                )
            assert rejected.value.code == 40101
            assert not rejected.value.is_proven
            assert callee.acceptor.hellos == []


@on_both_loops
async def test_secret_changes_node_by_node_while_all_can_connect() -> None:
    async with node(secret=b"old") as one, node(secret=b"old") as two:

        async def all_connect() -> None:
            for caller, callee in ((one, two), (two, one)):
                opened = await connect(caller.network, callee.address)
                opened.connection.send(b"x")
                assert await callee.acceptor.receivers[-1].has(1) == [b"x"]

        for changed, keys in (
            (one, [b"new", b"old"]),
            (two, [b"new", b"old"]),
            (one, [b"new"]),
            (two, [b"new"]),
        ):
            changed.network.replace_keys(keys)
            await all_connect()
        outdated = HttpNetwork([b"old"])
        with pytest.raises(RejectedError):
            await connect(outdated, one.address)


@on_both_loops
async def test_connections_by_a_removed_secret_end_on_either_side() -> None:
    for remover in ("caller", "callee"):
        async with node(secret=b"old") as callee:
            caller = HttpNetwork([b"old"])
            by_old = await connect(caller, callee.address)
            callee.network.replace_keys([b"new", b"old"])
            caller.replace_keys([b"new", b"old"])
            by_new = await connect(caller, callee.address)
            network = caller if remover == "caller" else callee.network
            assert network.replace_keys([b"new"]) == 1
            await by_old.ends()
            await callee.acceptor.receivers[0].ends()
            by_new.connection.send(b"x")
            assert await callee.acceptor.receivers[1].has(1) == [b"x"]
            await caller.close()


async def test_secret_is_never_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    async with node() as right, node(secret=b"another secret in tests") as wrong:
        for caller, callee in ((right, wrong), (wrong, right), (right, right)):
            try:
                await connect(caller.network, callee.address)
            except RejectedError as error:
                said.append(str(error))
        said += [repr(vars(right.network.__class__)), repr(right.network)]
    assert len(said) == 4
    told = caplog.text + "".join(said)
    assert SECRET.decode() not in told
    assert SECRET.hex() not in told
    assert "without this cluster's secret" in caplog.text


# Messages


@on_both_loops
async def test_messages_of_every_size_arrive_whole_and_in_order_both_ways() -> None:
    sizes = [0, 1, 120, 121, 122, 125, 126, 65_530, 65_536, 262_140, 262_144, 1_000_000, 3]
    messages = [bytes([size % 251]) * size for size in [*sizes, MESSAGE_BYTES_MAX, 5]]
    async with pair() as (mine, theirs, _):
        for message in messages:
            mine.connection.send(message)
            theirs.connection.send(message)
        assert await theirs.has(len(messages)) == messages
        assert await mine.has(len(messages)) == messages


@on_both_loops
async def test_messages_of_one_turn_leave_in_one_write() -> None:
    async with pair() as (mine, theirs, _):
        for end, other in ((mine, theirs), (theirs, mine)):
            writes = []
            transport = end.connection._transport  # type: ignore[attr-defined] # what it writes to

            class Spy:
                def __getattr__(self, name: str, transport: object = transport) -> object:
                    return getattr(transport, name)

                def write(self, data: bytes, transport: object = transport) -> None:
                    writes.append(len(data))  # noqa: B023 # called within this turn of the loop
                    transport.write(data)  # type: ignore[attr-defined]

            end.connection._transport = Spy()  # type: ignore[attr-defined]
            for _ in range(100):
                end.connection.send(bytes(300))
            assert end.connection.queued_bytes >= 30_000
            await other.has(100)
            assert len(writes) == 1
            end.connection._transport = transport  # type: ignore[attr-defined]


@on_both_loops
async def test_small_writes_are_not_delayed() -> None:
    async with pair() as (mine, theirs, _):
        for end in (mine, theirs):
            connected = end.connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@on_both_loops
async def test_too_long_a_message_ends_the_connection() -> None:
    async with pair() as (mine, theirs, _):
        mine.connection.send(bytes(MESSAGE_BYTES_MAX + 1))
        await theirs.ends()
        await mine.ends()
        assert theirs.messages == []


# Ends


@on_both_loops
async def test_closing_is_told_to_both_sides_once_and_sends_what_was_sent() -> None:
    for closer in (0, 1):
        async with pair() as (mine, theirs, callee):
            ends = (mine, theirs)
            ends[closer].connection.send(b"the last")
            ends[closer].connection.close()
            ends[closer].connection.close()
            ends[closer].connection.send(b"nothing any more")
            await mine.ends()
            await theirs.ends()
            assert ends[1 - closer].messages == [b"the last"]
            ends[1 - closer].connection.close()
            await until(lambda callee=callee: not callee.handed_over)  # type: ignore[misc]
            assert mine.connection.queued_bytes == theirs.connection.queued_bytes == 0


@on_both_loops
async def test_connection_closed_by_its_owner_in_opened_is_told_to_the_receiver() -> None:
    def at_once(connection: Connection) -> Recorder:
        connection.send(b"x")
        connection.close()
        return Recorder(connection)

    async with node(acceptor=FakeAcceptor(opened_by=at_once)) as callee:
        caller = HttpNetwork([SECRET])
        try:
            mine = await connect(caller, callee.address)
        except NetworkError:
            pass
        else:
            await mine.ends()
        await callee.acceptor.receivers[0].ends()


@on_both_loops
async def test_nothing_is_received_after_close() -> None:
    async with pair() as (mine, theirs, _):
        took: list[bytes] = []

        def received(message: bytes) -> None:
            took.append(message)
            theirs.connection.close()

        theirs.received = received  # type: ignore[method-assign] # this test's own
        for _ in range(100):
            mine.connection.send(b"x")
        await theirs.ends()
        assert took == [b"x"]


@on_both_loops
async def test_peer_that_does_not_read_is_cut_off() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_socket, "QUEUED_BYTES_MAX", 4_000_000)
        async with pair() as (mine, theirs, _):
            mine.connection._transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(PATIENCE_S):
                while not theirs.closed_count:
                    theirs.connection.send(bytes(100_000))
                    assert theirs.connection.queued_bytes <= 4_000_000 + 500_000
                    await asyncio.sleep(0)
            mine.connection._transport.resume_reading()  # type: ignore[attr-defined]
            await mine.ends()


@on_both_loops
async def test_stalled_connection_can_be_closed_at_once() -> None:
    async with pair() as (mine, theirs, _):
        mine.connection._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            theirs.connection.send(bytes(100_000))
            await asyncio.sleep(0)
        assert theirs.connection.queued_bytes > 1_000_000
        theirs.connection.close()
        async with asyncio.timeout(0.5):
            await theirs.ends()
        mine.connection._transport.resume_reading()  # type: ignore[attr-defined]


@on_both_loops
async def test_server_that_closes_ends_the_connections_of_both_directions() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(node())
        two = await stack.enter_async_context(node())
        there = await connect(one.network, two.address)
        back = await connect(two.network, one.address)
        await one.server.close()
        for end in (there, back, one.acceptor.receivers[0], two.acceptor.receivers[0]):
            await end.ends()
        with pytest.raises(NetworkError, match="stopping"):
            await connect(one.network, two.address)
        with pytest.raises(RefusedError):
            await connect(two.network, one.address)


@on_both_loops
async def test_http_server_alone_cuts_what_was_handed_over() -> None:
    async with pair() as (mine, theirs, callee):
        await callee.server._main.close()
        assert callee.handed_over == 0
        assert theirs.closed_count == 1
        await mine.ends()


@on_both_loops
async def test_receiver_that_fails_ends_its_connection_and_is_told_as_a_broken_invariant() -> None:
    class Failing(Recorder):
        error: Exception

        def received(self, message: bytes) -> None:
            raise self.error

    broken: list[AssertionError] = []
    logging.disable(logging.CRITICAL)
    try:
        for error, told in ((AssertionError("x"), 1), (KeyError("x"), 0)):
            Failing.error = error
            broken.clear()
            acceptor = FakeAcceptor(opened_by=Failing)
            async with pair(acceptor=acceptor, on_broken_invariant=broken.append) as ends:
                mine, theirs, _ = ends
                mine.connection.send(b"1")
                mine.connection.send(b"2")
                await theirs.ends()
                assert len(broken) == told
    finally:
        logging.disable(logging.NOTSET)


@on_both_loops
async def test_acceptor_that_fails_is_told_as_a_broken_invariant() -> None:
    broken: list[AssertionError] = []
    logging.disable(logging.CRITICAL)
    try:
        acceptor = FakeAcceptor(refusal=AssertionError("x"))
        async with node(acceptor=acceptor, on_broken_invariant=broken.append) as callee:
            with pytest.raises(NetworkError):
                await connect(callee.network, callee.address)
        assert len(broken) == 1
    finally:
        logging.disable(logging.NOTSET)


@on_both_loops
async def test_failure_of_the_callers_own_opened_is_raised_to_it() -> None:
    async with node() as callee:
        with pytest.raises(AssertionError, match="though it must not"):
            await callee.network.connect(callee.address, CHANNEL, b"h", never, timeout_s=PATIENCE_S)
        await callee.acceptor.receivers[0].ends()
