"""The handshake in which two nodes prove that they hold the cluster's secret. No I/O.

    caller                                     callee
      nonce                        ------->
                                   <-------    nonce: the response to any stranger
      both nonces, proof of them   ------->    or the response to any stranger
                                   <-------    proof
      HELLO    hello, proof        ------->
                                   <-------    ANSWER   hello, proof      (or REJECTION)
      CONFIRM  proof               ------->
                                   <-------    WELCOME  proof             (or REJECTION)

The first four lines travel in HTTP heads (opening.py), the others as messages. Every proof is
HMAC-SHA-256 under the secret's key. It covers the version of this protocol, the step, the channel,
both nonces, and all messages of both sides so far, each with its length. Therefore:

- A proof is valid only for its step, its channel, its side and these two nonces. A recorded proof
  is useless, and neither side's proof can be turned against that side.
- A replaced message is noticed, because ANSWER and CONFIRM cover both hellos.
- Each side reads the other's hello only behind a proof for a nonce that the reader made.

The callee keeps nothing of a caller before its proof (nonces.py), and a recorded proof opens no
second connection. A caller without the secret therefore holds no place among the openings.

The caller proves itself first. A callee that proved itself first would hand every client of its
port a proof for guessing the secret. A caller hands its proof only to the addresses that it was
given. Guesses are also expensive, because the key is derived from the secret by scrypt. The
handshake gives neither secrecy nor integrity to later messages. TLS does that.

A node may hold two secrets while the secret of its cluster is changed. The caller tries its keys in
order. The callee accepts each of its keys, and continues with the key of the caller's proof.

`Caller` and `Callee` are one handshake each. The peer's mistakes raise `AuthError`, and the peer
gets no further response. A rejection by a proven peer raises `RejectedError`. Calls in the wrong
order are broken invariants.
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
"""Version of the handshake. Changes when a byte of it, or of the later framing, changes its
meaning."""
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HELLO_BYTES_MAX: Final = 64 * 1024
REASON_BYTES_MAX: Final = 4 * 1024
"""Most bytes of a rejection's reason. Longer reasons are cut."""
STEP_BYTES_MAX: Final = 1 + PROOF_BYTES + HELLO_BYTES_MAX
"""Longest message of the handshake."""

KEYS_MAX: Final = 2
"""Most secrets at once. Two are the present secret and the previous or next."""
_SCRYPT_COST: Final = 2**15
_SCRYPT_BLOCK: Final = 8
_SCRYPT_BYTES_MAX: Final = 64 * 1024 * 1024

_CODE: Final = Struct("!I")


class AuthError(Exception):
    """The peer has not proven that it holds the secret, or breaks the handshake's rules."""


def derive_key(secret: bytes) -> bytes:
    """Derive the key of a secret.

    Takes 60 ms of processor and 32 MiB, so call it once, on a thread. The salt is fixed, because
    all nodes must derive the same key.
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
    """Purpose of a proof. The first byte of the steps that are messages."""

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
        """Raises AuthError for an invalid nonce."""
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
            raise AuthError("the proof was not made with the cluster's secret")

    def write(self, step: Step, body: bytes = b"") -> bytes:
        """Return a message with a proof that also covers its body."""
        if step in _WITH_BODY:
            self.add(body)
        return bytes((step,)) + self.proof(step) + body

    def read(self, message: bytes, *expected: Step) -> tuple[Step, bytes]:
        """Return step and body of a proven message of an expected step. Raises AuthError."""
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
    """Assert the bound of this side's hello."""
    assert len(hello) <= HELLO_BYTES_MAX, f"a hello of {len(hello)} bytes"


class Caller:
    """The calling side. Call `opening`, `challenged`, `answered`, `welcomed`, in this order."""

    def __init__(
        self, key: bytes, channel: str, hello: bytes, nonce: bytes, callee_nonce: bytes
    ) -> None:
        """`nonce` is this side's, never used for another handshake. Raises AuthError."""
        check_hello(hello)
        self.key = key
        self.hello: bytes | None = None
        """The other side's hello, known after ANSWER."""
        self._own_hello = hello
        self._transcript = _Transcript(key, channel, nonce, callee_nonce)
        self._next = Step.CHALLENGE

    def opening(self) -> bytes:
        """Return the proof for both nonces."""
        assert self._next is Step.CHALLENGE
        return self._transcript.proof(Step.OPENING)

    def challenged(self, proof: bytes) -> bytes:
        """Take the callee's proof and return HELLO. Raises AuthError."""
        assert self._next is Step.CHALLENGE
        self._transcript.check(Step.CHALLENGE, proof)
        self._next = Step.ANSWER
        return self._transcript.write(Step.HELLO, self._own_hello)

    def answered(self, message: bytes) -> bytes:
        """Take ANSWER and return CONFIRM. Raises AuthError, and RejectedError by the callee."""
        assert self._next is Step.ANSWER
        self.hello = self._read(message, Step.ANSWER)
        self._next = Step.WELCOME
        return self._transcript.write(Step.CONFIRM)

    def welcomed(self, message: bytes) -> None:
        """Take WELCOME, which opens the connection. Raises AuthError, and RejectedError by the
        callee.
        """
        assert self._next is Step.WELCOME
        self._read(message, Step.WELCOME)

    def _read(self, message: bytes, expected: Step) -> bytes:
        step, body = self._transcript.read(message, expected, Step.REJECTION)
        if step is Step.REJECTION:
            raise _rejection(body)
        return body


class Callee:
    """The called side: `challenge`, `take_hello`, `answer`, `confirmed`, `welcome`, in order."""

    def __init__(
        self,
        keys: Sequence[bytes],
        channel: str,
        caller_nonce: bytes,
        nonce: bytes,
        proof: bytes,
    ) -> None:
        """`nonce` is this side's. Raises AuthError if no key of `keys` made the first proof."""
        self.hello: bytes | None = None
        """The caller's hello, known after `take_hello`."""
        for key in keys:
            transcript = _Transcript(key, channel, caller_nonce, nonce)
            if transcript.proves(Step.OPENING, proof):
                break
        else:
            raise AuthError("the proof was not made with the cluster's secret")
        self.key = key
        self._transcript = transcript
        self._next = Step.CHALLENGE

    def challenge(self) -> bytes:
        """Return the callee's proof for both nonces."""
        assert self._next is Step.CHALLENGE
        self._next = Step.HELLO
        return self._transcript.proof(Step.CHALLENGE)

    def take_hello(self, message: bytes) -> bytes:
        """Take HELLO and return the caller's hello. Raises AuthError."""
        assert self._next is Step.HELLO
        _, hello = self._transcript.read(message, Step.HELLO)
        self.hello = hello
        self._next = Step.ANSWER
        return hello

    def answer(self, hello: bytes) -> bytes:
        """Return ANSWER with this side's hello."""
        assert self._next is Step.ANSWER
        check_hello(hello)
        self._next = Step.CONFIRM
        return self._transcript.write(Step.ANSWER, hello)

    def confirmed(self, message: bytes) -> None:
        """Take CONFIRM, which proves the caller over both hellos. Raises AuthError."""
        assert self._next is Step.CONFIRM
        self._transcript.read(message, Step.CONFIRM)
        self._next = Step.WELCOME

    def welcome(self) -> bytes:
        """Return WELCOME, which opens the connection."""
        assert self._next is Step.WELCOME
        return self._transcript.write(Step.WELCOME)

    def rejection(self, error: RejectedError) -> bytes:
        """Return REJECTION, in place of ANSWER or WELCOME."""
        assert self._next in (Step.ANSWER, Step.WELCOME), "strangers get no reason"
        reason = error.message.encode(errors="replace")[:REASON_BYTES_MAX]
        return self._transcript.write(Step.REJECTION, _CODE.pack(error.code) + reason)


def _rejection(body: bytes) -> RejectedError:
    if len(body) < _CODE.size:
        raise AuthError("a rejection without a code")
    (code,) = _CODE.unpack_from(body)
    return RejectedError(code, body[_CODE.size :].decode(errors="replace"))
