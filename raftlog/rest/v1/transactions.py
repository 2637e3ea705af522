"""The /v1 routes serve transactions, two-phase commit and sink epochs.

A transaction begins with its first write, `POST /v1/produce` with `transactional_id`. Each end
returns the producer epoch for the next transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from raftlog.api import transactions as api
from raftlog.api.common import Empty
from raftlog.api.groups import CommitResponse
from raftlog.broker.groups import Committer, OpenTransaction
from raftlog.broker.transactions import Producer
from raftlog.http.body import read_json
from raftlog.http.request import Request, ServerContext, whole_number
from raftlog.http.responses import json_response
from raftlog.http.routing import Route
from raftlog.record import errors
from raftlog.record.errors import LogError
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.rest.v1.groups import commit_response, offsets_to_commit

_init_decoder = msgspec.json.Decoder(api.InitRequest)
_end_decoder = msgspec.json.Decoder(api.EndRequest)
_offsets_decoder = msgspec.json.Decoder(api.TransactionOffsets)
_sink_decoder = msgspec.json.Decoder(api.SinkEpochRequest)
_sink_commit_decoder = msgspec.json.Decoder(api.SinkCommitRequest)


async def init(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/init."""
    body = await read_json(request, context, _init_decoder)
    found = await context.broker.transactions.init(
        request.principal,
        _transactional_id(request),
        timeout_ms=body.timeout_ms,
        known=Producer(ProducerId(body.producer_id), ProducerEpoch(body.producer_epoch)),
        keep_prepared=body.keep_prepared,
    )
    return json_response(api.TransactionProducer(*found.producer, found.prepared is not None))


async def commit(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/commit."""
    return await _end(request, context, is_commit=True)


async def abort(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/abort."""
    return await _end(request, context, is_commit=False)


async def _end(request: Request, context: ServerContext, *, is_commit: bool) -> web.StreamResponse:
    producer = await _producer(request, context)
    following = await context.broker.transactions.end(
        request.principal, _transactional_id(request), producer, is_commit=is_commit
    )
    return json_response(api.TransactionProducer(*following))


async def prepare(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/prepare."""
    producer = await _producer(request, context)
    await context.broker.transactions.prepare(
        request.principal, _transactional_id(request), producer
    )
    return json_response(api.TransactionProducer(*producer, is_prepared=True))


async def fence(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/fence."""
    await context.broker.transactions.fence(request.principal, _transactional_id(request))
    return json_response(Empty())


async def commit_offsets(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/transactions/{id}/offsets."""
    body = await read_json(request, context, _offsets_decoder)
    producer = Producer(ProducerId(body.producer_id), ProducerEpoch(body.producer_epoch))
    outcomes = await context.broker.groups.commit(
        request.principal,
        body.group,
        offsets_to_commit(body.offsets),
        Committer(body.member_id, body.member_epoch),
        OpenTransaction(_transactional_id(request), producer),
    )
    return json_response(commit_response(outcomes))


async def list_transactions(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/transactions."""
    found = await context.broker.transactions.list(request.principal)
    return json_response(
        api.TransactionList(
            [
                api.TransactionListing(
                    transaction.transactional_id,
                    *transaction.producer,
                    transaction.state,
                    coordinator,
                    transaction.open_ms,
                )
                for transaction, coordinator in found.transactions
            ],
            list(found.incomplete),
        )
    )


async def describe(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/transactions/{id}."""
    found, coordinator = await context.broker.transactions.describe(
        request.principal, _transactional_id(request)
    )
    summary = found.summary
    return json_response(
        api.TransactionDescription(
            summary.transactional_id,
            *summary.producer,
            state=summary.state,
            coordinator=coordinator,
            timeout_ms=found.timeout_ms,
            started_ms=found.start_ms,
            last_update_ms=found.last_update_ms,
            open_ms=summary.open_ms,
            partitions=[api.TransactionPartition(*place) for place in found.partitions],
        )
    )


async def commit_sink_epoch(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/sinks/{sink}/epochs/{epoch}."""
    body = await read_json(request, context, _sink_decoder)
    epoch = whole_number(request.path_parameters["epoch"])
    if epoch is None or not 0 <= epoch < 2**63:
        raise LogError(errors.BAD_REQUEST, "The epoch of a sink is a number from 0 on.")
    found = await context.broker.transactions.commit_sink_epoch(
        request.principal,
        request.path_parameters["sink"],
        body.transactional_ids,
        epoch=epoch,
        owner=body.owner,
    )
    return json_response(api.SinkEpoch(*msgspec.structs.astuple(found)))


async def commit_sink(request: Request, context: ServerContext) -> web.StreamResponse:
    """POST /v1/sinks/{sink}/commit."""
    body = await read_json(request, context, _sink_commit_decoder)
    await context.broker.transactions.commit_sink_epoch(
        request.principal, request.path_parameters["sink"], body.transactional_ids, owner=body.owner
    )
    return json_response(Empty())


async def describe_sink(request: Request, context: ServerContext) -> web.StreamResponse:
    """GET /v1/sinks/{sink}."""
    found = await context.broker.transactions.describe_sink(
        request.principal, request.path_parameters["sink"]
    )
    return json_response(api.SinkEpoch(*msgspec.structs.astuple(found)))


def _transactional_id(request: Request) -> str:
    transactional_id = request.path_parameters["id"]
    if not 1 <= len(transactional_id) <= 255:
        raise LogError(
            errors.INVALID_TRANSACTIONAL_ID, "A transactional id has 1 to 255 characters."
        )
    return transactional_id


async def _producer(request: Request, context: ServerContext) -> Producer:
    body = await read_json(request, context, _end_decoder)
    return Producer(ProducerId(body.producer_id), ProducerEpoch(body.producer_epoch))


_ERRORS: Final = (
    errors.INVALID_BODY,
    errors.INVALID_TRANSACTIONAL_ID,
    errors.RETRIABLE,
    errors.COORDINATOR_LOADING,
    errors.NOT_COORDINATOR,
)
_END_ERRORS: Final = (
    *_ERRORS,
    errors.PRODUCER_FENCED,
    errors.INVALID_PRODUCER_EPOCH,
    errors.INVALID_PRODUCER_ID_MAPPING,
    errors.INVALID_TXN_STATE,
    errors.CONCURRENT_TRANSACTIONS,
)


def _end_route(
    verb: str,
    handler: Callable[[Request, ServerContext], Awaitable[web.StreamResponse]],
    summary: str,
) -> Route:
    return Route(
        "POST",
        f"/v1/transactions/{{id}}/{verb}",
        handler,
        summary,
        tag="transactions",
        request_type=api.EndRequest,
        response_type=api.TransactionProducer,
        errors=_END_ERRORS,
    )


_post = partial(Route, "POST", tag="transactions")
_get = partial(Route, "GET", tag="transactions")

ROUTES: Final = (
    _post(
        "/v1/transactions/{id}/init",
        init,
        "Become the one producer of a transactional id. Earlier producers are fenced, and their "
        "open transaction is aborted. Returns 40940 until the abort is done.",
        request_type=api.InitRequest,
        response_type=api.TransactionProducer,
        errors=(
            *_ERRORS,
            errors.PRODUCER_FENCED,
            errors.CONCURRENT_TRANSACTIONS,
            errors.INVALID_TRANSACTION_TIMEOUT,
        ),
    ),
    _end_route("commit", commit, "Commit the producer's transaction."),
    _end_route("abort", abort, "Abort the producer's transaction."),
    _end_route(
        "prepare",
        prepare,
        "First of two phases. The transaction accepts no more writes, and waits for its end.",
    ),
    _post(
        "/v1/transactions/{id}/offsets",
        commit_offsets,
        "Commit offsets of a group with the transaction, as a member, or without a member while "
        "the group is empty. They count once the transaction is committed, and not at all after "
        "an abort. Each partition succeeds or fails separately.",
        request_type=api.TransactionOffsets,
        response_type=CommitResponse,
        errors=(
            *_END_ERRORS,
            errors.INVALID_GROUP,
            errors.UNKNOWN_MEMBER,
            errors.STALE_MEMBER_EPOCH,
            errors.TRANSACTION_NOT_VERIFIED,
            errors.TRANSACTION_TOO_LARGE,
            errors.TOO_MANY_GROUPS,
        ),
    ),
    _post(
        "/v1/transactions/{id}/fence",
        fence,
        "Abort the open transaction whatever its producer does, and fence that producer.",
        request_type=Empty,
        response_type=Empty,
        errors=(*_ERRORS, errors.UNKNOWN_TRANSACTION, errors.INVALID_TXN_STATE),
    ),
    _get(
        "/v1/transactions",
        list_transactions,
        "All transactional ids, with the state and age of their transactions.",
        response_type=api.TransactionList,
    ),
    _get(
        "/v1/transactions/{id}",
        describe,
        "A transactional id, with the partitions of its transaction.",
        response_type=api.TransactionDescription,
        errors=(*_ERRORS, errors.UNKNOWN_TRANSACTION),
    ),
    _post(
        "/v1/sinks/{sink}/epochs/{epoch}",
        commit_sink_epoch,
        "Commit these prepared transactions of a sink as one epoch, and abort its others, all or "
        "nothing. An epoch that is already committed changes nothing.",
        request_type=api.SinkEpochRequest,
        response_type=api.SinkEpoch,
        errors=(
            errors.BAD_REQUEST,
            *_ERRORS,
            errors.UNKNOWN_TRANSACTION,
            errors.INVALID_TXN_STATE,
            errors.TRANSACTION_TOO_LARGE,
            errors.SINK_OWNED,
        ),
    ),
    _post(
        "/v1/sinks/{sink}/commit",
        commit_sink,
        "Commit these prepared transactions of a sink without an epoch, and abort its others, all"
        " or nothing. It is for a sink that commits once, or, without transactions, for a sink "
        "that gives up. Committed transactions stay committed.",
        request_type=api.SinkCommitRequest,
        response_type=Empty,
        errors=(
            *_ERRORS,
            errors.UNKNOWN_TRANSACTION,
            errors.INVALID_TXN_STATE,
            errors.TRANSACTION_TOO_LARGE,
            errors.SINK_OWNED,
        ),
    ),
    _get(
        "/v1/sinks/{sink}",
        describe_sink,
        "The newest committed epoch of a sink, or -1 before the first.",
        response_type=api.SinkEpoch,
        errors=_ERRORS,
    ),
)
