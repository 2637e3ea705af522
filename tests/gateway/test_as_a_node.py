"""A gateway answers the v2 convention as a node does: the node's own tests, through a gateway."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.gateway.in_process import gateway_node
from tests.rest.v2 import test_consumers as test_v2_consumers
from tests.rest.v2 import test_produce as test_v2_produce
from tests.rest.v2 import test_records as test_v2_records
from tests.rest.v2 import test_topics as test_v2_topics

MODULES = (test_v2_consumers, test_v2_topics, test_v2_produce, test_v2_records)
NODE_INSIDE = "looks into the node, or at another of its routes, through the same peer"
BROKERS = "a gateway has no GET /brokers"
SLOW = "about what one node holds in memory while it reads; its own tests suffice"
LEFT_OUT = {
    "test_rights": NODE_INSIDE,
    "test_configs_are_left_out_for_a_principal_that_may_not_describe_them": NODE_INSIDE,
    "test_the_next_coordinator_learns_where_latest_was": NODE_INSIDE,
    "test_two_instances_of_a_group_share_a_topic": NODE_INSIDE,
    "test_brokers_and_errors_have_the_media_type_of_v2": BROKERS,
    "test_topics_are_listed_sorted": "creates a topic at the node: the catalog has the logs",
    "test_unknown_topic_is_created_only_if_the_settings_say_so": "the catalog has the logs",
    "test_long_poll_ends_when_the_server_closes": "test_forwarding.py has the gateway's own",
    "test_batches_of_reads_that_wait_for_a_thread_are_counted_and_given_back": SLOW,
    "test_uncompressed_batches_of_reads_that_wait_for_a_turn_are_counted": SLOW,
    "test_batch_of_very_many_records_is_answered_in_bounded_memory": SLOW,
    "test_max_bytes_counts_what_is_answered": SLOW,
    "test_no_body_and_no_query_makes_an_internal_error": SLOW,
    "test_no_query_makes_an_internal_error": SLOW,
    "test_partly_failed_request_tells_of_each_record": "waits 5 s for the node's retries",
}


def node_tests() -> Iterator[tuple[Any, str, Any]]:
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction):
            if name.startswith("test_"):
                yield module, name, function


def arguments_of(function: Any) -> list[dict[str, Any]]:
    """The arguments of a test's marks, one row for each run."""
    rows: list[dict[str, Any]] = [{}]
    for mark in getattr(function, "pytestmark", []):
        given, values, *_ = mark.args
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
        rows = [
            {**row, **dict(zip(names, one if len(names) > 1 else [one], strict=True))}
            for row in rows
            for one in values
        ]
    return rows


CASES = [
    pytest.param(module, function, row, id=f"{name}-{number}")
    for module, name, function in node_tests()
    if name not in LEFT_OUT
    for number, row in enumerate(arguments_of(function))
]


@pytest.mark.parametrize(("module", "case", "arguments"), CASES)
async def test_a_gateway_passes_the_tests_of_a_node(
    module: Any, case: Any, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 0

    def node(*given: Any, **options: Any) -> AbstractAsyncContextManager[Any]:
        nonlocal used
        used += 1
        return gateway_node(*given, **options)

    for name in ("group_node", "data_node"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, node)
    if "monkeypatch" in inspect.signature(case).parameters:
        arguments = {**arguments, "monkeypatch": monkeypatch}
    await case(**arguments)
    assert used, "the test is one of a gateway"


def test_what_is_left_out_exists() -> None:
    names = {name for _, name, _ in node_tests()}
    assert set(LEFT_OUT) - names == set()
    assert len(CASES) > 150, "the tests of a node are found"
