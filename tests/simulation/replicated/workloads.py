"""Commands of clients of the examples, and the observations that these make of registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from raftlog_replicated.examples import bank, kv
from raftlog_replicated.types import At, Codec, Token

from tests.verification.register_history import Kind, Operation, Outcome

View: TypeAlias = dict[str, int]
"""The state as reads see it: numbers by name."""
BEGUN_NS: Final = 0


@dataclass(frozen=True)
class Sent:
    """A command of a client, and the client's knowledge of its outcome."""

    client: int
    command: Any
    request_id: str | None
    invoked_ns: int
    returned_ns: int
    outcome: Outcome
    """OK: applied, with the result; FAIL: it does not happen."""
    result: Any = None
    token: Token | None = None
    note: str = ""


@dataclass(frozen=True)
class Effect:
    """A command applied to the state that the log makes."""

    command: Any
    at: At
    result: Any
    before: View
    after: View


class Workload(ABC):
    """A state machine of an example, and commands for it."""

    name: str
    codec: Codec[Any, Any]

    def __init__(self, random: Random) -> None:
        self.random = random

    @abstractmethod
    def machine(self) -> Any:
        """An empty state."""

    @abstractmethod
    def view(self, machine: Any) -> View:
        """The state."""

    def first_command(self, client: int) -> Any:
        """A command that a client has applied before all others; None: there is none."""
        return None

    @abstractmethod
    def command(self) -> tuple[Any, bool]:
        """The next command of a client, and whether it has to have a request id."""

    @abstractmethod
    def check(self, view: View) -> None:
        """Raise AssertionError if no order of commands leads to this state."""

    def first_operations(self) -> Iterable[Operation]:
        """Operations before all others."""
        return ()

    @abstractmethod
    def operations(self, sent: Sent, effect: Effect | None) -> Iterator[Operation]:
        """A command as operations of registers; `effect` None: the log does not have it."""

    def reads(
        self, client: int, view: View, times: tuple[int, int], note: str
    ) -> Iterator[Operation]:
        """A read of the whole state as operations of registers."""
        for key in self.keys:
            yield _operation(client, Kind.READ, key, view.get(key), times, note=note)

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """Names in the state."""


def _operation(
    client: int,
    kind: Kind,
    key: str,
    value: int | None,
    times: tuple[int, int],
    *,
    expected: int | None = None,
    outcome: Outcome = Outcome.OK,
    note: str = "",
) -> Operation:
    return Operation(
        process=client,
        kind=kind,
        key=key,
        value=value,
        expected=expected,
        invoked_ns=times[0],
        returned_ns=times[1],
        outcome=outcome,
        note=note,
    )


ABSENT: Final = 0
"""The value of a key without one: the checker knows no deletes, so each is a write of this."""


class KvWorkload(Workload):
    """Put, delete, compare and set: each value is put once."""

    name = "kv"
    codec = kv.CODEC
    keys = ("x", "y")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._value = ABSENT

    def machine(self) -> kv.KeyValues:
        return kv.KeyValues()

    def view(self, machine: kv.KeyValues) -> View:
        return {key: int(machine.values.get(key) or ABSENT) for key in self.keys}

    def command(self) -> tuple[kv.Put, bool]:
        random = self.random
        self._value += 1
        key, value, near = random.choice(self.keys), self._value, random.randint(1, 5)
        chance = random.random()
        if chance < 0.1:
            # Several unknown writes of one value would be too hard for the checker.
            return kv.Put(key, None), True
        if chance < 0.15:
            return kv.Put(key, None, str(max(1, value - near))), True
        if chance < 0.4:
            return kv.Put(key, str(value), str(max(1, value - near))), False
        return kv.Put(key, str(value), is_new=chance < 0.5), False

    def check(self, view: View) -> None:
        assert all(ABSENT <= value <= self._value for value in view.values()), view

    def first_operations(self) -> Iterator[Operation]:
        for key in self.keys:
            yield _operation(0, Kind.WRITE, key, ABSENT, (BEGUN_NS, BEGUN_NS))

    def operations(self, sent: Sent, effect: Effect | None) -> Iterator[Operation]:
        """By the client's knowledge alone: an answer says which value a command found."""
        command: kv.Put = sent.command
        times, note = (sent.invoked_ns, sent.returned_ns), sent.note
        value = int(command.value or ABSENT)
        if sent.outcome is Outcome.OK:
            result: kv.Outcome = sent.result
            before = int(result.before or ABSENT)
            if result.done:
                yield _operation(
                    sent.client, Kind.CAS, command.key, value, times, expected=before, note=note
                )
            else:
                yield _operation(sent.client, Kind.READ, command.key, before, times, note=note)
        elif sent.outcome is Outcome.UNKNOWN:
            is_write = command.expected is None and not command.is_new
            yield _operation(
                sent.client,
                Kind.WRITE if is_write else Kind.CAS,
                command.key,
                value,
                times,
                expected=None if is_write else int(command.expected or ABSENT),
                outcome=Outcome.UNKNOWN,
                note=note,
            )


FIRST_BALANCE: Final = 400


class BankWorkload(Workload):
    """Transfers between the accounts of all clients: each amount is transferred once."""

    name = "bank"
    codec = bank.CODEC
    keys = ("v", "w", "x", "y")

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._amount = 0

    def machine(self) -> bank.Ledger:
        return bank.Ledger()

    def view(self, machine: bank.Ledger) -> View:
        get = machine.balances.get
        return {key: amount for key in self.keys if (amount := get(key)) is not None}

    def first_command(self, client: int) -> bank.Open:
        return bank.Open(self.keys[client], FIRST_BALANCE)

    def command(self) -> tuple[bank.Transfer, bool]:
        self._amount += 1
        source, target = self.random.choice(self.keys), self.random.choice(self.keys)
        return bank.Transfer(source, target, self._amount), False

    def check(self, view: View) -> None:
        assert sum(view.values()) == FIRST_BALANCE * len(view), f"coins lost or made: {view}"
        assert all(amount >= 0 for amount in view.values()), f"an overdraft: {view}"

    def operations(self, sent: Sent, effect: Effect | None) -> Iterator[Operation]:
        """By the log: an answer does not say what the balances were."""
        if effect is None:
            return
        command: bank.Open | bank.Transfer = sent.command
        times = (sent.invoked_ns, sent.returned_ns)
        is_open = isinstance(command, bank.Open)
        names = {command.account} if is_open else {command.source, command.target}
        for name in sorted(names):
            before, after = effect.before.get(name), effect.after.get(name)
            if before != after:
                yield _operation(
                    sent.client,
                    Kind.CAS,
                    name,
                    after,
                    times,
                    expected=before,
                    outcome=sent.outcome,
                    note=f"{sent.command} {sent.note}",
                )
            elif sent.outcome is Outcome.OK:
                yield _operation(sent.client, Kind.READ, name, before, times, note=sent.note)


class Recorder:
    """A state machine that notes each applied command."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.machine = workload.machine()
        self.effects: list[Effect] = []
        self.view: View = workload.view(self.machine)

    def apply(self, command: Any, at: At) -> Any:
        """Apply, and note."""
        before = self.view
        result = self.machine.apply(command, at)
        self.view = self._workload.view(self.machine)
        self.effects.append(Effect(command, at, result, before, self.view))
        return result

    def snapshot(self) -> Iterator[bytes]:
        """The machine's."""
        snapshot: Iterator[bytes] = self.machine.snapshot()
        return snapshot

    def restore(self, chunks: Iterable[bytes]) -> None:
        """To the machine."""
        self.machine.restore(chunks)

    def digest(self) -> bytes:
        """The machine's: a primary's digest in the log has to be equal."""
        digest: bytes = self.machine.digest()
        return digest


def effects_by_identity(
    effects: Iterable[Effect], requests: Mapping[int, Mapping[int, str]]
) -> dict[Any, list[Effect]]:
    """Effects by request id, or by the command itself, which is then sent once.

    `requests`: request ids by position of the entry and number of the command.
    """
    found: dict[Any, list[Effect]] = {}
    for effect in effects:
        name = requests[effect.at.position].get(effect.at.number)
        found.setdefault(name or effect.command, []).append(effect)
    return found
