"""The handshake between two nodes: both prove that they hold the cluster's secret. No I/O.

    caller                                     callee
      nonce                        ------->
                                   <-------    nonce: the answer for any stranger
      both nonces, proof of them   ------->    or the answer for any stranger
                                   <-------    proof
      HELLO    hello, proof        ------->
                                   <-------    ANSWER   hello, proof      (or REJECTION)
      CONFIRM  proof               ------->
                                   <-------    WELCOME  proof             (or REJECTION)

The first four lines travel in HTTP heads (opening.py), the others as messages. Every proof is
HMAC-SHA-256 under the key of the secret over: the version of this protocol, the step, the channel,
both nonces, and all messages of both sides so far, each with its length. So

- a proof is good for its step, its channel, its side and these two nonces alone: a recorded proof
  is useless, and neither side's proof can be turned against the side;
- no message can be exchanged unnoticed: ANSWER and CONFIRM cover both hellos;
- each side reads the other's hello only behind a proof made for a nonce of its own.

The callee keeps nothing of a caller before its proof (nonces.py), and a recorded proof is good for
no second connection: so without the secret a caller holds no place among the openings.

One side must prove itself first. That is the caller: a callee that did would hand every client of
its port a proof to guess the secret by, a caller only the addresses that it was given. A guess is
made expensive, too: the key is derived from the secret by scrypt. The handshake gives neither
secrecy nor integrity to later messages: those are TLS's part.

A node may hold two secrets while the secret of its cluster is changed. The caller tries its keys in
order; the callee accepts each of its own, and goes on with the one of the caller's proof.

`Caller` and `Callee` are one handshake each. The peer's mistakes raise `AuthError` (the peer gets
no further answer) or, for the rejection by a proven peer, `RejectedError`; calls in the wrong order
are broken invariants.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

from raftlog.world.network import RejectedError

VERSION: Final = b"raftlog node handshake 2"
"""Changed whenever a byte of the handshake, or of the framing after it, changes its meaning."""
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HELLO_BYTES_MAX: Final = 64 * 1024
REASON_BYTES_MAX: Final = 4 * 1024
"""Longer reasons of rejections are cut."""
STEP_BYTES_MAX: Final = 1 + PROOF_BYTES + HELLO_BYTES_MAX
"""Longest message of the handshake."""

KEYS_MAX: Final = 2
"""Secrets at once: the present one, and the one before or after."""
_SCRYPT_COST: Final = 2**15
_SCRYPT_BLOCK: Final = 8
_SCRYPT_BYTES_MAX: Final = 64 * 1024 * 1024

_CODE: Final = Struct("!I")


class AuthError(Exception):
    """The peer has not proven to hold the secret, or breaks the handshake's rules."""


def derive_key(secret: bytes) -> bytes:
    """The key of a secret. Takes 60 ms of processor and 32 MiB: call it on a thread, and once.

    The salt is fixed, because all nodes must derive the same key.
    """
    assert secret, "an empty secret proves nothing"
    return hashlib.scrypt(
        secret,
        salt=VERSION,
        n=_SCRYPT_COST,
        r=_SCRYPT_BLOCK,
        p=1,
        maxmem=_SCRYPT_BYTES_MAX,
        dklen=PROOF_BYTES,
    )


class Step(IntEnum):
    """Purpose of a proof; the first byte of the steps that are messages."""

    OPENING = 1
    CHALLENGE = 2
    HELLO = 3
    ANSWER = 4
    CONFIRM = 5
    WELCOME = 6
    REJECTION = 7


_WITH_BODY: Final = (Step.HELLO, Step.ANSWER, Step.REJECTION)


class _Transcript:
    """All messages of both sides so far, and the proofs over them."""

    def __init__(self, key: bytes, channel: str, caller_nonce: bytes, callee_nonce: bytes) -> None:
        """Raises AuthError if a nonce is none."""
        assert key, "an empty key proves nothing"
        for nonce in (caller_nonce, callee_nonce):
            if len(nonce) != NONCE_BYTES:
                raise AuthError(f"a nonce of {len(nonce)} bytes")
        self._key = key
        self._said = [channel.encode(), caller_nonce, callee_nonce]

    def add(self, said: bytes) -> None:
        self._said.append(said)

    def proof(self, step: Step) -> bytes:
        mac = hmac.new(self._key, VERSION, hashlib.sha256)
        mac.update(bytes((step, len(self._said))))
        for part in self._said:
            mac.update(len(part).to_bytes(4, "big"))
            mac.update(part)
        return mac.digest()

    def proves(self, step: Step, proof: bytes) -> bool:
        return hmac.compare_digest(self.proof(step), proof)

    def check(self, step: Step, proof: bytes) -> None:
        if not self.proves(step, proof):
            raise AuthError("the proof is not one by the cluster's secret")

    def write(self, step: Step, body: bytes = b"") -> bytes:
        """A message with a proof over its body, too."""
        if step in _WITH_BODY:
            self.add(body)
        return bytes((step,)) + self.proof(step) + body

    def read(self, message: bytes, *expected: Step) -> tuple[Step, bytes]:
        """A message of one of the expected steps, proven. Raises AuthError."""
        if len(message) > STEP_BYTES_MAX or len(message) < 1 + PROOF_BYTES:
            raise AuthError(f"a message of {len(message)} bytes in the handshake")
        if message[0] not in expected:
            raise AuthError(f"message {message[0]} is out of order in the handshake")
        step, body = Step(message[0]), message[1 + PROOF_BYTES :]
        if step in _WITH_BODY:
            self.add(body)
        elif body:
            raise AuthError(f"a {step.name} with a body")
        self.check(step, message[1 : 1 + PROOF_BYTES])
        return step, body


def check_hello(hello: bytes) -> None:
    """Assert the bound of one's own hello."""
    assert len(hello) <= HELLO_BYTES_MAX, f"a hello of {len(hello)} bytes"


class Caller:
    """The calling side: `opening`, `challenged`, `answered`, `welcomed`, in this order."""

    def __init__(
        self, key: bytes, channel: str, hello: bytes, nonce: bytes, callee_nonce: bytes
    ) -> None:
        """`nonce` is one's own, never used for another handshake. Raises AuthError."""
        check_hello(hello)
        self.key = key
        self.hello: bytes | None = None
        """The other side's hello; known after ANSWER."""
        self._own_hello = hello
        self._transcript = _Transcript(key, channel, nonce, callee_nonce)
        self._next = Step.CHALLENGE

    def opening(self) -> bytes:
        """The proof for both nonces."""
        assert self._next is Step.CHALLENGE
        return self._transcript.proof(Step.OPENING)

    def challenged(self, proof: bytes) -> bytes:
        """Take the callee's proof; returns HELLO. Raises AuthError."""
        assert self._next is Step.CHALLENGE
        self._transcript.check(Step.CHALLENGE, proof)
        self._next = Step.ANSWER
        return self._transcript.write(Step.HELLO, self._own_hello)

    def answered(self, message: bytes) -> bytes:
        """Take ANSWER; returns CONFIRM. Raises AuthError, and RejectedError by the callee."""
        assert self._next is Step.ANSWER
        self.hello = self._read(message, Step.ANSWER)
        self._next = Step.WELCOME
        return self._transcript.write(Step.CONFIRM)

    def welcomed(self, message: bytes) -> None:
        """Take WELCOME: the connection is open. Raises AuthError, RejectedError by the callee."""
        assert self._next is Step.WELCOME
        self._read(message, Step.WELCOME)

    def _read(self, message: bytes, expected: Step) -> bytes:
        step, body = self._transcript.read(message, expected, Step.REJECTION)
        if step is Step.REJECTION:
            raise _rejection(body)
        return body


class Callee:
    """The called side: `challenge`, `take_hello`, `answer`, `confirmed`, `welcome`."""

    def __init__(
        self,
        keys: Sequence[bytes],
        channel: str,
        caller_nonce: bytes,
        nonce: bytes,
        proof: bytes,
    ) -> None:
        """`nonce` is one's own. Raises AuthError for a first proof by none of `keys`."""
        self.hello: bytes | None = None
        """The caller's hello; known after `take_hello`."""
        for key in keys:
            transcript = _Transcript(key, channel, caller_nonce, nonce)
            if transcript.proves(Step.OPENING, proof):
                break
        else:
            raise AuthError("the proof is not one by the cluster's secret")
        self.key = key
        self._transcript = transcript
        self._next = Step.CHALLENGE

    def challenge(self) -> bytes:
        """The callee's proof for both nonces."""
        assert self._next is Step.CHALLENGE
        self._next = Step.HELLO
        return self._transcript.proof(Step.CHALLENGE)

    def take_hello(self, message: bytes) -> bytes:
        """Take HELLO; returns the caller's hello. Raises AuthError."""
        assert self._next is Step.HELLO
        _, hello = self._transcript.read(message, Step.HELLO)
        self.hello = hello
        self._next = Step.ANSWER
        return hello

    def answer(self, hello: bytes) -> bytes:
        """ANSWER, with one's own hello."""
        assert self._next is Step.ANSWER
        check_hello(hello)
        self._next = Step.CONFIRM
        return self._transcript.write(Step.ANSWER, hello)

    def confirmed(self, message: bytes) -> None:
        """Take CONFIRM: the caller has proven itself over both hellos. Raises AuthError."""
        assert self._next is Step.CONFIRM
        self._transcript.read(message, Step.CONFIRM)
        self._next = Step.WELCOME

    def welcome(self) -> bytes:
        """WELCOME: the connection is open."""
        assert self._next is Step.WELCOME
        return self._transcript.write(Step.WELCOME)

    def rejection(self, error: RejectedError) -> bytes:
        """REJECTION, in place of ANSWER or WELCOME."""
        assert self._next in (Step.ANSWER, Step.WELCOME), "strangers get no reason"
        reason = error.message.encode(errors="replace")[:REASON_BYTES_MAX]
        return self._transcript.write(Step.REJECTION, _CODE.pack(error.code) + reason)


def _rejection(body: bytes) -> RejectedError:
    if len(body) < _CODE.size:
        raise AuthError("a rejection without a code")
    (code,) = _CODE.unpack_from(body)
    return RejectedError(code, body[_CODE.size :].decode(errors="replace"))
