"""The produce endpoints share options, errors, and the status of a failed request.

The options (acks, timeout, producer identity) stand either in the query or in the body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from raftlog.api.common import EPOCH_MAX, INT32_MAX
from raftlog.api.transactions import TRANSACTIONAL_ID_PATTERN
from raftlog.broker.produce import Acks, PartitionWrite, ProduceOptions
from raftlog.http.request import Request, choice_parameter, integer_parameter
from raftlog.http.routing import QueryParameter
from raftlog.http.settings import ServerLimits
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.rest.json.records import ProduceBody

ACKS: Final[Mapping[str, Acks]] = MappingProxyType(
    {"all": Acks.ALL, "-1": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}
)

_is_transactional_id: Final = re.compile(TRANSACTIONAL_ID_PATTERN).fullmatch

QUERY: Final = (
    QueryParameter(
        "acks", str, "Durability of the records on success. One of all (or -1), 1, 0.", "all"
    ),
    QueryParameter("timeout", int, "Milliseconds to wait for the acknowledgements."),
)
TRANSACTIONAL_QUERY: Final = (
    *QUERY,
    QueryParameter("transactional_id", str, "Of the transaction that the batches join. They are "
                   "transactional, of the producer id and epoch of its init, or of its last end."),
)  # fmt: skip
IDEMPOTENT_QUERY: Final = (
    *QUERY,
    QueryParameter("producer_id", int, "With producer_epoch and sequence, a repeat is not written"
                                       " again. It returns the offsets of the first write."),
    QueryParameter("producer_epoch", int, "Incarnation of the producer id."),
    QueryParameter("sequence", int, "Number of the first record, counted on by each record of this "
                   "producer to this partition."),
    QueryParameter("transactional_id", str, "Of the transaction that the records join, with "
                   "producer id and epoch of its init, or of its last end."),
)  # fmt: skip

PRODUCE_ERRORS: Final = (
    errors.BAD_REQUEST,
    errors.UNKNOWN_TOPIC,
    errors.UNKNOWN_PARTITION,
    errors.OUT_OF_ORDER_SEQUENCE,
    errors.PRODUCER_FENCED,
    errors.UNKNOWN_PRODUCER_ID,
    errors.BODY_TOO_LARGE,
    errors.RECORD_TOO_LARGE,
    errors.UNSUPPORTED_MEDIA_TYPE,
    errors.INVALID_BODY,
    errors.RETRIABLE,
    errors.NO_LEADER,
    errors.NOT_ENOUGH_REPLICAS,
    errors.STORAGE_FAILED,
    errors.DISK_FULL,
)


@lru_cache(maxsize=16)
def _defaults(timeout_ms: int) -> ProduceOptions:
    return ProduceOptions(Acks.ALL, timeout_ms / 1000)


def transactional_options(request: Request, limits: ServerLimits) -> ProduceOptions:
    """Return the options of `produce_options` with `transactional_id`.

    Raises LogError BAD_REQUEST.
    """
    options = produce_options(request, limits)
    transactional_id = request.query_parameters.get("transactional_id")
    if transactional_id is None:
        return options
    _check_transaction(transactional_id, options.acks)
    return replace(options, transactional_id=transactional_id)


def produce_options(request: Request, limits: ServerLimits) -> ProduceOptions:
    """Return the query's acks and timeout (ms). Raises LogError BAD_REQUEST."""
    if not request.query_text:
        return _defaults(limits.produce_timeout_ms_default)
    acks = choice_parameter(request, "acks", "all", ACKS)
    timeout_ms = integer_parameter(request, "timeout", limits.produce_timeout_ms_default)
    return ProduceOptions(ACKS[acks], _timeout_s(timeout_ms, limits))


def idempotent_options(request: Request, body: ProduceBody, limits: ServerLimits) -> ProduceOptions:
    """Return acks, timeout (ms), producer_id, producer_epoch and sequence of query and body.

    Raises LogError BAD_REQUEST for a wrong option, for an option in both places, and for half a
    producer identity.
    """
    options = produce_options(request, limits)
    if not request.query_text and not body.has_options():
        return options
    given = request.query_parameters
    for name in ("acks", "timeout", "producer_id", "producer_epoch", "sequence"):
        if name in given and getattr(body, name) is not None:
            raise LogError(errors.BAD_REQUEST, f"{name} is given in the query and in the body.")
    acks, timeout_s = options.acks, options.timeout_s
    if body.acks is not None:
        chosen = ACKS.get(str(body.acks))
        if chosen is None:
            raise LogError(
                errors.BAD_REQUEST, f"acks must be all, -1, 0 or 1, not {body.acks!r:.40}."
            )
        acks = chosen
    if body.timeout is not None:
        timeout_s = _timeout_s(body.timeout, limits)
    producer_id = _identity(request, "producer_id", body.producer_id)
    epoch = _identity(request, "producer_epoch", body.producer_epoch, EPOCH_MAX)
    sequence = _identity(request, "sequence", body.sequence, INT32_MAX)
    missing = (producer_id, epoch, sequence).count(-1)
    if missing not in (0, 3):
        raise LogError(
            errors.BAD_REQUEST,
            "producer_id, producer_epoch and sequence go together. Send all three or none.",
        )
    transactional_id = request.query_parameters.get("transactional_id")
    if transactional_id is not None:
        _check_transaction(transactional_id, acks)
        if missing:
            raise LogError(
                errors.BAD_REQUEST,
                "transactional_id needs producer_id, producer_epoch and sequence beside it.",
            )
    return ProduceOptions(
        acks=acks,
        timeout_s=timeout_s,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        sequence=sequence,
        transactional_id=transactional_id,
    )


def raise_if_nothing_written(writes: Sequence[PartitionWrite]) -> None:
    """If every partition failed, raise one of the errors, preferring an unknown outcome.

    A client that reads only the HTTP status must not mistake a failed request for a written
    request.
    """
    worst: LogError | None = None
    for write in writes:
        if not isinstance(write.outcome, LogError):
            return
        if worst is None or (
            write.outcome.entry.outcome_unknown and not worst.entry.outcome_unknown
        ):
            worst = write.outcome
    if worst is not None:
        raise worst


def _timeout_s(timeout_ms: int, limits: ServerLimits) -> float:
    return min(timeout_ms, limits.produce_timeout_ms_max) / 1000


def _check_transaction(transactional_id: str, acks: Acks) -> None:
    if not _is_transactional_id(transactional_id):
        raise LogError(
            errors.BAD_REQUEST, "transactional_id must have 1 to 255 printable characters."
        )
    if acks is not Acks.ALL:
        raise LogError(errors.BAD_REQUEST, "The records of a transaction need acks=all.")


def _identity(request: Request, name: str, in_body: int | None, maximum: int = 2**63 - 1) -> int:
    if in_body is not None:
        return in_body
    if name not in request.query_parameters:
        return -1
    return integer_parameter(request, name, -1, maximum=maximum)
