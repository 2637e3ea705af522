"""A classic group under clients: joins, syncs, leaves, restarts, repeats and silence.

The model knows the answers of the present coordinator only, and judges each of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog.coordinator.groups.classic.messages import (
    ClassicState,
    Held,
    Joined,
    JoinGroup,
    LeavingMember,
    MemberIdRequired,
    Protocol,
    Synced,
)
from raftlog.coordinator.groups.messages import JOIN_EPOCH, LEAVE_EPOCH
from raftlog.coordinator.groups.offset_messages import Committer
from raftlog.coordinator.groups.settings import GroupSettings, MemberTimer, TimerKind
from raftlog.record.errors import (
    FENCED_INSTANCE_ID,
    GROUP_FULL,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER,
    ErrorEntry,
)
from tests.coordinator.classic_harness import GROUP, Answer, Stage
from tests.examples import examples

SESSION_MS = (20, 100)
REBALANCE_MS = (15, 50)
LIMITS = GroupSettings(
    session_timeout_ms_min=10,
    session_timeout_ms_max=100,
    initial_rebalance_delay_ms=5,
    members_max=4,
)
HELD_MAX_MS = max(REBALANCE_MS)
CLIENTS = 6

clients = st.integers(0, CLIENTS - 1)
protocol_lists = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(
    lambda names: tuple(Protocol(name, name.encode()) for name in names)
)


@dataclass(slots=True)
class Client:
    """A client, as it sees itself. The first two have instance ids."""

    instance_id: str | None
    member_id: str = ""
    joined: Joined | None = None
    ticket: int | None = None
    request: JoinGroup | None = None
    """The last JoinGroup that was not refused."""


@dataclass(slots=True)
class Generation:
    """Answers for one generation of the present coordinator."""

    protocol: str
    leader: str
    members: set[str] = field(default_factory=set)
    """As the leader's answer lists them."""
    assigned: dict[str, bytes] | None = None


class ClassicGroupAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(LIMITS)
        self.clients = [Client(f"i{number}" if number < 2 else None) for number in range(CLIENTS)]
        self.generations: dict[int, Generation] = {}
        self.fenced: list[tuple[str, str]] = []
        """Member and instance ids that another member has replaced."""
        self.last_generation = 0

    # Answers

    def take(self, client: Client, answer: Answer | Held) -> None:
        """The client acts on an answer as Kafka's clients do."""
        match answer:
            case Held(ticket=ticket):
                client.ticket = ticket
            case MemberIdRequired(member_id=member_id):
                client.member_id, client.ticket = member_id, None
            case Joined():
                client.ticket = None
                self.judge_joined(client, answer)
                client.member_id, client.joined = answer.member_id, answer
            case Synced():
                client.ticket = None
                self.judge_synced(client, answer)
            case ErrorEntry():
                client.ticket = None
                assert answer in (
                    UNKNOWN_MEMBER,
                    FENCED_INSTANCE_ID,
                    REBALANCE_IN_PROGRESS,
                    ILLEGAL_GENERATION,
                    INCONSISTENT_PROTOCOL,
                    GROUP_FULL,
                )
                if answer in (UNKNOWN_MEMBER, FENCED_INSTANCE_ID):
                    client.member_id, client.joined = "", None

    def judge_joined(self, client: Client, joined: Joined) -> None:
        request = client.request
        assert request is not None
        assert joined.protocol in {each.name for each in request.protocols}
        assert joined.generation >= self.last_generation
        self.last_generation = joined.generation
        known = self.generations.setdefault(
            joined.generation, Generation(joined.protocol, joined.leader)
        )
        assert joined.protocol == known.protocol, "one protocol in a generation"
        is_leader = joined.leader == joined.member_id
        if joined.leader != known.leader:
            # A static leader that has started again: it does not assign a second time.
            assert client.instance_id is not None
            assert is_leader and joined.skip_assignment
            assert (known.leader, client.instance_id) in self.fenced
            known.leader = joined.leader
        assert bool(joined.members) == is_leader
        if is_leader:
            known.members |= {each.member_id for each in joined.members}
            assert joined.member_id in known.members
            assert all(each.metadata == joined.protocol.encode() for each in joined.members)

    def judge_synced(self, client: Client, synced: Synced) -> None:
        assert client.joined is not None
        generation = self.generations[client.joined.generation]
        assert synced.protocol == generation.protocol
        assert generation.assigned is not None, "an assignment before the leader's"
        assert synced.assignment == generation.assigned.get(client.member_id, b"")

    def collect(self) -> None:
        """Each client takes the answer of its last request."""
        for client in self.clients:
            if client.ticket is not None and client.ticket in self.stage.answers:
                self.take(client, self.stage.answers[client.ticket])

    # Rules

    @initialize(count=st.integers(1, 4), moves=st.integers(0, 3))
    def begin(self, count: int, moves: int) -> None:
        protocols = tuple(Protocol(name, name.encode()) for name in "abc")
        for client in self.clients[:count]:
            request = JoinGroup(
                GROUP, "consumer", protocols, 100, 15, instance_id=client.instance_id
            )
            self.send_join(client, request)
        self.behave(moves)

    @rule(
        number=clients,
        protocols=protocol_lists,
        session_ms=st.sampled_from(SESSION_MS),
        rebalance_ms=st.sampled_from(REBALANCE_MS),
        in_two_steps=st.booleans(),
        repeats=st.booleans(),
    )
    def join(
        self,
        *,
        number: int,
        protocols: tuple[Protocol, ...],
        session_ms: int,
        rebalance_ms: int,
        in_two_steps: bool,
        repeats: bool,
    ) -> None:
        """Join, with a new or a repeated request, even while the last one is held."""
        client = self.clients[number]
        request = client.request
        if request is None or not repeats:
            request = JoinGroup(
                GROUP,
                "consumer",
                protocols,
                session_ms,
                rebalance_ms,
                instance_id=client.instance_id,
                requires_member_id=in_two_steps,
            )
        self.send_join(client, request)

    def send_join(self, client: Client, request: JoinGroup) -> None:
        previous, client.request = client.request, request
        superseded, replaced = client.ticket, self.replaced_by(client)
        consumers = self.stage.shard.consumer_groups.get(GROUP)
        answer = self.stage.join(request, member_id=client.member_id)
        if consumers is not None and consumers.members:
            assert answer is INCONSISTENT_PROTOCOL
        if isinstance(answer, ErrorEntry) and answer in (
            INCONSISTENT_PROTOCOL,
            GROUP_FULL,
        ):
            client.request = previous
            return
        is_known = bool(client.member_id or client.instance_id)
        if superseded is not None and is_known and not isinstance(answer, ErrorEntry):
            # Released by the new request, or by the barrier ended by this one.
            assert superseded not in self.stage.waiting
        if replaced is not None and client.instance_id is not None:
            self.fenced.append((replaced, client.instance_id))
        self.take(client, answer)
        if isinstance(answer, Joined) and replaced is not None:
            assigned = self.generations[answer.generation].assigned
            if assigned is not None:
                assigned[answer.member_id] = assigned.get(replaced, b"")
        self.collect()

    def replaced_by(self, client: Client) -> str | None:
        """The member that a join of the client would replace."""
        if client.member_id or client.instance_id is None:
            return None
        members = self.stage.group.describe().members
        found = (each.member_id for each in members if each.instance_id == client.instance_id)
        return next(found, None)

    @rule(number=clients)
    def start_again(self, number: int) -> None:
        """The client's process starts again and knows nothing; its old self may still send."""
        client = self.clients[number]
        client.member_id, client.joined, client.ticket = "", None, None
        if client.request is not None:
            self.send_join(client, client.request)

    @rule(number=clients, brings=st.booleans())
    def sync(self, number: int, brings: bool) -> None:
        client = self.clients[number]
        joined = client.joined
        if joined is None:
            return
        generation = self.generations.get(joined.generation)
        assignments = {}
        state = self.stage.group.state
        is_leader = joined.member_id == joined.leader and not joined.skip_assignment
        if is_leader and generation is not None:
            assignments = {
                each.member_id: f"{joined.generation} {each.member_id}".encode()
                for each in (joined.members if brings else joined.members[:1])
            }
            if (
                state is ClassicState.COMPLETING_REBALANCE
                and joined.generation == self.stage.group.generation
                and self.stage.group.leader == client.member_id
            ):
                generation.assigned = assignments
        self.take(client, self.stage.sync(joined, assignments, instance_id=client.instance_id))
        self.collect()

    @rule(number=clients, off_by=st.sampled_from([0, 0, -1, 1]))
    def heartbeat(self, number: int, off_by: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        generation = client.joined.generation + off_by
        answer = self.stage.heartbeat(client.member_id, generation, client.instance_id)
        if generation != self.stage.group.generation:
            assert answer in (ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED_INSTANCE_ID)
        elif self.stage.group.state is ClassicState.PREPARING_REBALANCE:
            assert answer in (REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER, FENCED_INSTANCE_ID)
        if answer is not None and off_by == 0 and answer is not ILLEGAL_GENERATION:
            self.take(client, answer)

    @rule(number=clients, off_by=st.sampled_from([0, 0, -1, 1]))
    def commit(self, number: int, off_by: int) -> None:
        """Only members of the present generation commit."""
        client = self.clients[number]
        if client.joined is None:
            return
        generation = client.joined.generation + off_by
        committer = Committer(client.member_id, generation, client.instance_id)
        group = self.stage.group
        error = self.stage.commit(committer)
        if error is not None:
            assert error in (
                ILLEGAL_GENERATION,
                UNKNOWN_MEMBER,
                FENCED_INSTANCE_ID,
                REBALANCE_IN_PROGRESS,
            )
        else:
            assert generation == group.generation or (generation < 0 and group.is_empty)
            assert group.state is not ClassicState.COMPLETING_REBALANCE

    @precondition(lambda self: self.fenced)
    @rule(data=st.data())
    def replaced_static_member_sends(self, data: st.DataObject) -> None:
        member_id, instance_id = data.draw(st.sampled_from(self.fenced))
        answer = self.stage.heartbeat(member_id, self.stage.group.generation, instance_id)
        assert answer in (FENCED_INSTANCE_ID, UNKNOWN_MEMBER)

    @rule(numbers=st.lists(clients, min_size=1, max_size=3))
    def leave(self, numbers: list[int]) -> None:
        leaving = [self.clients[number] for number in numbers]
        codes = self.stage.leave(
            *(LeavingMember(each.member_id, each.instance_id) for each in leaving)
        )
        for client, code in zip(leaving, codes, strict=True):
            assert code in (0, UNKNOWN_MEMBER.code, FENCED_INSTANCE_ID.code)
            client.member_id, client.joined, client.ticket = "", None, None
        self.collect()

    @rule(passed_ms=st.sampled_from([1, 4, 5, 14, 19, 25]))
    def advance(self, passed_ms: int) -> None:
        for _ in range(passed_ms):
            self.stage.advance(1)
            self.collect()
            self.holds_no_request_too_long()

    @rule(stays=st.booleans())
    def consumer_joins(self, stays: bool) -> None:
        """A member of the other kind comes in while there are no members of this one."""
        is_empty = self.stage.group.is_empty
        answer = self.stage.consumer("c", JOIN_EPOCH)
        if not is_empty:
            assert answer is INCONSISTENT_PROTOCOL
            return
        assert answer is None
        self.last_generation, self.generations = 0, {}
        if not stays:
            assert self.stage.consumer("c", LEAVE_EPOCH) is None

    @rule(moves=st.integers(1, 3))
    def all_behave(self, moves: int) -> None:
        self.behave(moves)

    @rule(moves=st.integers(3, 6), silent=clients)
    def all_but_one_behave(self, moves: int, silent: int) -> None:
        self.behave(moves, silent)

    def behave(self, moves: int, silent: int | None = None) -> None:
        """Clients do as clients should, so that generations become stable."""
        for _ in range(moves):
            for number, client in enumerate(self.clients):
                if client.ticket is not None or number == silent:
                    continue
                if client.joined is None:
                    if client.request is not None:
                        self.send_join(client, client.request)
                elif self.stage.group.state is ClassicState.STABLE:
                    self.heartbeat(number, 0)
                elif client.joined.generation < self.stage.group.generation or (
                    self.stage.group.state is ClassicState.PREPARING_REBALANCE
                ):
                    assert client.request is not None
                    self.send_join(client, client.request)
                else:
                    self.sync(number, brings=True)
            self.advance(5)

    @rule()
    def reload(self) -> None:
        """Another coordinator loads the log: the last recorded generation is back."""
        before, log = self.stage.group, self.stage.log
        live = (before.generation, before.leader, before.describe(), before.empty_since_ms)
        self.stage.reload()
        group = self.stage.group
        if before.state in (ClassicState.STABLE, ClassicState.EMPTY):
            assert (
                group.generation,
                group.leader,
                group.describe(),
                group.empty_since_ms,
            ) == live
        else:
            recorded = log[-1].generation if log and log[-1] is not None else 0
            assert group.generation == recorded <= before.generation
        compacted = Stage(LIMITS)
        newest = {record.key: record for record in self.stage.records}
        compacted.records = [one for one in newest.values() if one.value is not None]
        compacted.reload()
        assert compacted.group.describe() == group.describe()
        assert (compacted.group.generation, compacted.group.leader) == (
            group.generation,
            group.leader,
        )
        # Generations that were not stable are forgotten: their numbers come again.
        self.last_generation = group.generation
        self.generations = {
            number: each for number, each in self.generations.items() if number <= group.generation
        }
        restored = {each.member_id for each in group.describe().members}
        self.fenced = [each for each in self.fenced if each[0] not in restored]
        for client in self.clients:
            client.ticket = None
            if client.joined is not None and client.joined.generation > group.generation:
                client.joined = None

    # Invariants

    @invariant()
    def the_group_is_of_one_kind(self) -> None:
        shard = self.stage.shard
        assert shard.consumer_groups.get(GROUP) is None or shard.classic.get(GROUP) is None

    @invariant()
    def holds_no_request_too_long(self) -> None:
        for since_ms in self.stage.waiting.values():
            assert self.stage.now_ms - since_ms <= HELD_MAX_MS

    @invariant()
    def members_are_held_or_have_a_session(self) -> None:
        group, timers = self.stage.group, self.stage.timers
        members = group.describe().members
        assert len(members) <= LIMITS.members_max
        assert len({each.instance_id for each in members if each.instance_id}) == sum(
            each.instance_id is not None for each in members
        )
        without_session = [
            each.member_id
            for each in members
            if timers.deadline_ms(MemberTimer(TimerKind.SESSION, GROUP, each.member_id)) is None
        ]
        assert len(without_session) == len(self.stage.waiting) <= len(members)
        assert group.is_empty == (group.state is ClassicState.EMPTY)

    @invariant()
    def waits_have_a_deadline(self) -> None:
        group, timers = self.stage.group, self.stage.timers
        if group.state is ClassicState.PREPARING_REBALANCE:
            assert timers.deadline_ms(MemberTimer(TimerKind.REBALANCE, GROUP)) is not None
        if self.stage.waiting and group.state is ClassicState.COMPLETING_REBALANCE:
            assert timers.deadline_ms(MemberTimer(TimerKind.SYNC, GROUP)) is not None
        if group.state is ClassicState.COMPLETING_REBALANCE:
            answered = {
                each.member_id
                for each in self.stage.answers.values()
                if isinstance(each, Joined) and each.generation == group.generation
            }
            assert group.leader in answered, "a leader that was absent cannot assign"
            dynamic = (each for each in group.describe().members if each.instance_id is None)
            assert {each.member_id for each in dynamic} <= answered
        if group.state is ClassicState.STABLE:
            assert not self.stage.waiting
            value = self.stage.log[-1]
            assert value is not None and value.generation == group.generation
            assert {each.member_id for each in value.members} == {
                each.member_id for each in group.describe().members
            }

    def teardown(self) -> None:
        """Silent clients: all is released, and the group is empty."""
        self.stage.advance(10 * (max(SESSION_MS) + HELD_MAX_MS))
        assert not self.stage.waiting
        assert self.stage.group.state is ClassicState.EMPTY
        assert len(self.stage.timers) == 0


TestClassicGroupAgainstModel = ClassicGroupAgainstModel.TestCase
TestClassicGroupAgainstModel.settings = settings(
    max_examples=examples(300), stateful_step_count=60, deadline=None, report_multiple_bugs=False
)
