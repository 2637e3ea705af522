"""The state machines of the examples: deterministic, whatever the order of snapshots."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_replicated.errors import UnknownEntryError
from raftlog_replicated.examples.bank import CODEC, Ledger, Open, Receipt, Transfer
from raftlog_replicated.examples.kv import KeyValues, Outcome, Put
from raftlog_replicated.types import At

AT: Final = At(1, 0, 1, 0)


def test_a_put_says_which_value_was_before() -> None:
    machine = KeyValues()
    assert machine.apply(Put("k", "1"), AT) == Outcome(done=True, before=None)
    assert machine.apply(Put("k", "2"), AT) == Outcome(done=True, before="1")
    assert machine.apply(Put("k", None), AT) == Outcome(done=True, before="2")
    assert machine.apply(Put("k", None), AT) == Outcome(done=True, before=None)
    assert len(machine.values) == 0


def test_a_compare_and_set_without_its_value_changes_nothing() -> None:
    machine = KeyValues()
    assert machine.apply(Put("k", "1", "0"), AT) == Outcome(done=False, before=None)
    machine.apply(Put("k", "0"), AT)
    assert machine.apply(Put("k", "1", "0"), AT) == Outcome(done=True, before="0")
    assert machine.apply(Put("k", None, "0"), AT) == Outcome(done=False, before="1")
    assert machine.values.get("k") == "1"


def test_a_new_key_is_set_once() -> None:
    machine = KeyValues()
    assert machine.apply(Put("k", "1", is_new=True), AT).done
    assert machine.apply(Put("k", "2", is_new=True), AT) == Outcome(done=False, before="1")


def ledger(**balances: int) -> Ledger:
    machine = Ledger()
    for account, amount in balances.items():
        assert machine.apply(Open(account, amount), AT).done
    return machine


def test_an_account_is_opened_once() -> None:
    machine = ledger(ann=10)
    assert not machine.apply(Open("ann", 5), AT).done
    assert machine.total() == 10


def test_no_transfer_overdraws_or_meets_a_missing_account() -> None:
    machine = ledger(ann=10, bob=0)
    for refused in (
        Transfer("ann", "bob", 11),
        Transfer("bob", "ann", 1),
        Transfer("ann", "eve", 1),
        Transfer("eve", "ann", 0),
    ):
        receipt = machine.apply(refused, AT)
        assert not receipt.done
        assert receipt.reason
    assert dict(machine.balances.items()) == {"ann": 10, "bob": 0}
    assert machine.apply(Transfer("ann", "bob", 10), AT) == Receipt(done=True)
    assert dict(machine.balances.items()) == {"ann": 0, "bob": 10}


def test_amounts_are_whole_and_at_least_zero() -> None:
    for command in (Transfer("ann", "bob", -1), Open("ann", -1), Open("ann", 10**13)):
        with pytest.raises(UnknownEntryError):
            CODEC.decode_command(CODEC.encode_command(command))


NAMES: Final = st.sampled_from(["ann", "bob", "cid", "dot"])
TRANSFERS: Final = st.lists(st.builds(Transfer, NAMES, NAMES, st.integers(0, 60)), max_size=30)


@given(TRANSFERS, TRANSFERS)
def test_the_sum_stays_and_a_restored_ledger_goes_on_alike(
    before: list[Transfer], after: list[Transfer]
) -> None:
    machine, other = ledger(ann=50, bob=50, cid=50), Ledger()
    for command in before:
        machine.apply(command, AT)
    other.restore(machine.snapshot())
    assert other.digest() == machine.digest()
    for command in after:
        assert machine.apply(command, AT) == other.apply(command, AT)
        assert machine.total() == other.total() == 150
        assert all(amount >= 0 for _, amount in machine.balances.items())
    assert other.digest() == machine.digest()


KEYS: Final = st.sampled_from(["a", "b"])
VALUES: Final = st.none() | st.sampled_from(["0", "1", "2"])
PUTS: Final = st.lists(st.builds(Put, KEYS, VALUES, VALUES, st.booleans()), max_size=30)


@given(PUTS, PUTS)
def test_a_restored_store_goes_on_alike(before: list[Put], after: list[Put]) -> None:
    machine, other = KeyValues(), KeyValues()
    for command in before:
        machine.apply(command, AT)
    other.restore(machine.snapshot())
    for command in after:
        assert machine.apply(command, AT) == other.apply(command, AT)
    assert other.digest() == machine.digest()
    assert dict(other.values.items()) == dict(machine.values.items())
