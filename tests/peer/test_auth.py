"""The handshake: honest sides open; nothing changed, repeated or mixed up gets through."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from raftlog.peer.auth import (
    HELLO_BYTES_MAX,
    NONCE_BYTES,
    PROOF_BYTES,
    REASON_BYTES_MAX,
    STEP_BYTES_MAX,
    AuthError,
    Callee,
    Caller,
    Step,
    derive_key,
)
from raftlog.world.network import RejectedError

SECRET = b"secret"
NONCES = (b"c" * NONCE_BYTES, b"s" * NONCE_BYTES)
hellos = st.binary(max_size=200)


class Exchange:
    """One handshake between an honest caller and callee, with its messages."""

    def __init__(
        self,
        secrets: tuple[bytes, bytes] = (SECRET, SECRET),
        channels: tuple[str, str] = ("a", "a"),
        hellos: tuple[bytes, bytes] = (b"hc", b"hs"),
        nonces: tuple[bytes, bytes] = NONCES,
    ) -> None:
        self.nonces = nonces
        self.hellos = hellos
        self.channel = channels[1]
        self.callee_secret = secrets[1]
        self.caller = Caller(secrets[0], channels[0], hellos[0], *nonces)
        self.said: list[bytes] = []

    def say(self, data: bytes) -> bytes:
        """A message passes from one side to the other. Tests change it on the way."""
        self.said.append(data)
        return data

    def run(self) -> tuple[bytes | None, bytes | None]:
        """The hellos of both sides, each as received by the other."""
        opening = self.say(self.caller.opening())
        self.callee = Callee([self.callee_secret], self.channel, *self.nonces, opening)
        challenge = self.say(self.callee.challenge())
        hello = self.say(self.caller.challenged(challenge))
        self.callee.take_hello(hello)
        answer = self.say(self.callee.answer(self.hellos[1]))
        confirm = self.say(self.caller.answered(answer))
        self.callee.confirmed(confirm)
        self.caller.welcomed(self.say(self.callee.welcome()))
        return self.caller.hello, self.callee.hello


@given(hellos, hellos, st.binary(min_size=1), st.sampled_from(["a", "quorum"]))
def test_honest_sides_learn_each_others_hello(
    mine: bytes, theirs: bytes, secret: bytes, channel: str
) -> None:
    exchange = Exchange((secret, secret), (channel, channel), (mine, theirs))
    assert exchange.run() == (theirs, mine)


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_another_secret_does_not_get_past_the_first_line(mine: bytes, theirs: bytes) -> None:
    # HMAC fills short keys up with zero bytes: those are the same key.
    assume(mine.rstrip(b"\0") != theirs.rstrip(b"\0"))
    exchange = Exchange((mine, theirs))
    with pytest.raises(AuthError):
        exchange.run()
    assert len(exchange.said) == 1


def test_callee_without_the_secret_gets_no_hello() -> None:
    caller = Caller(SECRET, "a", b"hc", *NONCES)
    for proof in (caller.opening(), bytes(PROOF_BYTES), b""):
        with pytest.raises(AuthError):
            caller.challenged(proof)


def test_callee_accepts_each_of_its_keys_and_goes_on_with_the_callers() -> None:
    keys = [b"new", b"old"]
    for key in keys:
        caller = Caller(key, "a", b"hc", *NONCES)
        callee = Callee(keys, "a", *NONCES, caller.opening())
        assert callee.key == caller.key == key
        assert callee.take_hello(caller.challenged(callee.challenge())) == b"hc"
    with pytest.raises(AuthError):
        Callee(keys, "a", *NONCES, Caller(b"other", "a", b"hc", *NONCES).opening())


def test_key_of_a_secret_costs_a_guess_and_is_the_same_everywhere() -> None:
    """RFC 7914 has the function; a changed cost or salt would need another version."""
    key = derive_key(b"correct horse battery staple")
    assert len(key) == 32
    assert key == derive_key(b"correct horse battery staple") != derive_key(b"another")
    assert key.hex() == "d5559d2c043e6c9992a62ac53bfdd4cdaf0f2f86b0abf061348ecfd8f862ee3c"


@given(st.data())
def test_nothing_that_is_changed_on_its_way_gets_through(data: st.DataObject) -> None:
    target = data.draw(st.integers(0, 5), label="which")

    class Changing(Exchange):
        def say(self, said: bytes) -> bytes:
            super().say(said)
            if len(self.said) - 1 != target:
                return said
            index = data.draw(st.integers(0, len(said) - 1), label="where")
            change = data.draw(st.integers(1, 255), label="how")
            kind = data.draw(st.sampled_from(["change", "cut", "extend"]), label="kind")
            if kind == "cut":
                return said[:index]
            if kind == "extend":
                return said + bytes((change,))
            return said[:index] + bytes((said[index] ^ change,)) + said[index + 1 :]

    with pytest.raises(AuthError):
        Changing().run()


@given(
    st.integers(0, 5),
    st.sampled_from(["nonce of the caller", "nonce of the callee", "hellos", "channel"]),
)
def test_nothing_recorded_in_another_handshake_gets_through(target: int, other: str) -> None:
    """All but a repetition of exactly the same, which needs both nonces to be drawn again."""
    recorded = Exchange(
        nonces=(
            bytes(32) if other == "nonce of the caller" else NONCES[0],
            bytes(32) if other == "nonce of the callee" else NONCES[1],
        ),
        hellos=(b"other", b"other") if other == "hellos" else (b"hc", b"hs"),
        channels=("b", "b") if other == "channel" else ("a", "a"),
    )
    recorded.run()

    class Replaying(Exchange):
        def say(self, said: bytes) -> bytes:
            super().say(said)
            return recorded.said[target] if len(self.said) - 1 == target else said

    honest = Exchange()
    honest.run()
    if recorded.said[target] == honest.said[target]:
        Replaying().run()  # the first lines do not depend on later differences
    else:
        with pytest.raises(AuthError):
            Replaying().run()


def test_repeated_opening_is_none_for_another_nonce() -> None:
    recorded = Exchange()
    recorded.run()
    with pytest.raises(AuthError):
        Callee([SECRET], "a", NONCES[0], b"n" * NONCE_BYTES, recorded.said[0])
    # Were the callee's nonce drawn again, the words after it would still differ.
    again = Callee([SECRET], "a", *NONCES, recorded.said[0])
    again.challenge()
    for said in (recorded.said[0], recorded.said[1], *recorded.said[3:]):
        with pytest.raises(AuthError):
            again.take_hello(said)


def test_neither_side_can_be_answered_with_its_own_words() -> None:
    caller = Caller(SECRET, "a", b"h", *NONCES)
    opening = caller.opening()
    with pytest.raises(AuthError):
        caller.challenged(opening)
    caller = Caller(SECRET, "a", b"h", *NONCES)
    callee = Callee([SECRET], "a", *NONCES, opening)
    hello = caller.challenged(callee.challenge())
    with pytest.raises(AuthError):
        caller.answered(hello)


def test_proof_of_one_step_is_none_of_the_next() -> None:
    """ANSWER, CONFIRM and WELCOME cover the same words: a stranger could send them back."""
    caller = Caller(SECRET, "a", b"hc", *NONCES)
    callee = Callee([SECRET], "a", *NONCES, caller.opening())
    callee.take_hello(caller.challenged(callee.challenge()))
    answer = callee.answer(b"hs")
    with pytest.raises(AuthError):
        callee.confirmed(bytes((Step.CONFIRM,)) + answer[1 : 1 + PROOF_BYTES])
    confirm = caller.answered(answer)
    with pytest.raises(AuthError):
        caller.welcomed(bytes((Step.WELCOME,)) + confirm[1:])


@given(st.binary(max_size=300) | st.binary(min_size=33, max_size=33))
def test_random_bytes_are_an_auth_error_at_every_step(noise: bytes) -> None:
    with pytest.raises(AuthError):
        Callee([SECRET], "a", noise, noise, noise)
    with pytest.raises(AuthError):
        Callee([SECRET], "a", *NONCES, noise)
    with pytest.raises(AuthError):
        Caller(SECRET, "a", b"h", *NONCES).challenged(noise)
    for step in range(8):
        for message in (noise, bytes((step,)) + noise):
            caller = Caller(SECRET, "a", b"hc", *NONCES)
            callee = Callee([SECRET], "a", *NONCES, caller.opening())
            hello = caller.challenged(callee.challenge())
            with pytest.raises(AuthError):
                callee.take_hello(message)
            callee = Callee([SECRET], "a", *NONCES, Exchange().caller.opening())
            callee.challenge()
            callee.take_hello(hello)
            with pytest.raises(AuthError):
                caller.answered(message)
            callee.answer(b"hs")
            with pytest.raises(AuthError):
                callee.confirmed(message)


@pytest.mark.parametrize("late", [False, True])
def test_rejection_is_proven_and_carries_code_and_reason(late: bool) -> None:
    caller = Caller(SECRET, "a", b"hc", *NONCES)
    callee = Callee([SECRET], "a", *NONCES, caller.opening())
    callee.take_hello(caller.challenged(callee.challenge()))
    if late:
        callee.confirmed(caller.answered(callee.answer(b"hs")))
    message = callee.rejection(RejectedError(40903, "é" * REASON_BYTES_MAX))
    with pytest.raises(RejectedError) as rejected:
        (caller.welcomed if late else caller.answered)(message)
    assert rejected.value.code == 40903
    assert rejected.value.message == "é" * (REASON_BYTES_MAX // 2)


def test_rejection_by_somebody_without_the_secret_is_none() -> None:
    caller = Caller(SECRET, "a", b"hc", *NONCES)
    callee = Callee([SECRET], "a", *NONCES, caller.opening())
    callee.take_hello(caller.challenged(callee.challenge()))
    message = bytearray(callee.rejection(RejectedError(40903, "no")))
    message[1] ^= 1
    with pytest.raises(AuthError):
        caller.answered(bytes(message))


def test_strangers_are_never_told_why() -> None:
    callee = Callee([SECRET], "a", *NONCES, Exchange().caller.opening())
    callee.challenge()
    with pytest.raises(AssertionError):
        callee.rejection(RejectedError(40903, "no"))


def test_longest_hello_passes_and_a_longer_one_is_our_own_mistake() -> None:
    long = bytes(HELLO_BYTES_MAX)
    exchange = Exchange(hellos=(long, long))
    exchange.run()
    assert max(map(len, exchange.said)) == STEP_BYTES_MAX
    with pytest.raises(AssertionError):
        Caller(SECRET, "a", long + b"x", *NONCES)


def test_steps_out_of_order_are_our_own_mistake() -> None:
    caller = Caller(SECRET, "a", b"hc", *NONCES)
    callee = Callee([SECRET], "a", *NONCES, caller.opening())
    for step in (caller.answered, caller.welcomed, callee.take_hello, callee.confirmed):
        with pytest.raises(AssertionError):
            step(b"")
    with pytest.raises(AssertionError):
        callee.welcome()
    callee.challenge()
    with pytest.raises(AssertionError):
        callee.challenge()
