from __future__ import annotations

import pickle

import pytest
from raftlog_spark.options import (
    OptionsError,
    SinkOptions,
    SourceOptions,
    Subscription,
    sink_options,
    source_options,
)
from raftlog_spark.source.offsets import EARLIEST, LATEST, EachOffset, EachTime, SameTime

BASE = {"bootstrap.servers": "h:1", "subscribe": "t"}


def refused(more: dict[str, str], without: tuple[str, ...] = ()) -> str:
    options = {key: value for key, value in (BASE | more).items() if key not in without}
    with pytest.raises(OptionsError) as caught:
        source_options(options)
    return str(caught.value)


def test_defaults_are_those_of_sparks_kafka_source_but_committed_records_only() -> None:
    assert source_options(BASE) == SourceOptions(
        bootstrap_servers="h:1",
        subscription=Subscription(topics=("t",)),
        starting=None,
        ending=LATEST,
        max_offsets_per_trigger=None,
        min_offsets_per_trigger=None,
        max_trigger_delay_ms=15 * 60 * 1000,
        min_partitions=None,
        max_records_per_partition=None,
        fail_on_data_loss=True,
        include_headers=False,
        isolation="read_committed",
    )


def test_a_stream_starts_at_latest_and_a_batch_at_earliest() -> None:
    options = source_options(BASE)
    assert options.starting_point("stream") == LATEST
    assert options.starting_point("batch") == EARLIEST


def test_names_are_compared_without_case_as_spark_hands_them_over() -> None:
    options = source_options(
        {
            "kafka.bootstrap.servers": " h:1 , [::1]:2 ,http://i/",
            "subscribepattern": "a.*",
            "maxoffsetspertrigger": "10",
            "MINOFFSETSPERTRIGGER": "3",
            "maxtriggerdelay": "2m",
            "minpartitions": "4",
            "maxrecordsperpartition": "5",
            "failondataloss": "False",
            "includeheaders": "TRUE",
            "kafka.isolation.level": "read_uncommitted",
            "fetchbytes": "65536",
        }
    )
    assert options == SourceOptions(
        bootstrap_servers="h:1,[::1]:2,http://i/",
        subscription=Subscription(pattern="a.*"),
        max_offsets_per_trigger=10,
        min_offsets_per_trigger=3,
        max_trigger_delay_ms=120_000,
        min_partitions=4,
        max_records_per_partition=5,
        fail_on_data_loss=False,
        include_headers=True,
        isolation="read_uncommitted",
        fetch_bytes=65536,
        stream_only=("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    )


def test_the_more_exact_starting_option_wins() -> None:
    offsets = {"startingOffsets": '{"t": {"0": 7, "1": -2}}'}
    times = {"startingOffsetsByTimestamp": '{"t": {"0": 1000}}'}
    same = {"startingTimestamp": "2000"}
    assert source_options(BASE | offsets).starting == EachOffset({"t": {0: 7, 1: -2}})
    assert source_options(BASE | offsets | times).starting == EachTime({"t": {0: 1000}}, "error")
    assert source_options(BASE | offsets | times | same).starting == SameTime(2000, "error")
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    assert source_options(BASE | same | lenient).starting == SameTime(2000, "latest")


def test_the_more_exact_ending_option_wins_and_no_match_means_latest() -> None:
    offsets = {"endingOffsets": '{"t": {"0": 7, "1": -1}}'}
    times = {"endingOffsetsByTimestamp": '{"t": {"0": 1000}}'}
    same = {"endingTimestamp": "2000"}
    assert source_options(BASE | offsets).ending == EachOffset({"t": {0: 7, 1: -1}})
    assert source_options(BASE | offsets | times).ending == EachTime({"t": {0: 1000}}, "latest")
    assert source_options(BASE | offsets | times | same).ending == SameTime(2000, "latest")


def test_assign_names_partitions() -> None:
    options = source_options({"bootstrap.servers": "h:1", "assign": '{"a": [2, 0, 2], "b": [1]}'})
    assert options.subscription == Subscription(assign={"a": (0, 2), "b": (1,)})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"path": "x"}, "load()"),
        ({"sinkId": "x"}, "is for writing"),
        ({"assign": '{"t": [0]}'}, "assign and subscribe are given"),
        ({"kafka.bootstrap.servers": "other:1"}, "bootstrap.servers is given twice"),
        ({"bootstrap.servers": "h:x"}, "'h:x' is not host:port"),
        ({"bootstrap.servers": "h:1;i:1"}, "'h:1;i:1' is not host:port"),
        ({"bootstrap.servers": " , "}, '"bootstrap.servers" is missing'),
        ({"subscribe": "a,,b"}, "must be topics"),
        ({"startingOffsets": "first"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"00": 1}}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "a key comes twice"),
        ({"startingOffsets": "[" * 100_000}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"u": {"0": 1}}'}, "must be those that are read (t)"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "cannot be earliest"),
        (
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
            "t/0 would end at 4",
        ),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "one of: error, latest"),
        ({"maxOffsetsPerTrigger": "0"}, "whole number above 0"),
        ({"minPartitions": "2.5"}, "whole number above 0"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "must not exceed"),
        ({"maxTriggerDelay": "15 parsecs"}, "must be a time such as"),
        ({"failOnDataLoss": "yes"}, "must be true or false"),
        ({"isolationLevel": "serializable"}, "one of: read_committed"),
        ({"fetchBytes": "1"}, "must be from"),
    ],
)
def test_what_is_wrong_is_said_in_words(more: dict[str, str], words: str) -> None:
    assert words in refused(more)


def test_what_to_read_must_be_said() -> None:
    assert "exactly one of subscribe" in refused({}, without=("subscribe",))
    assert "bootstrap.servers" in refused({}, without=("bootstrap.servers",))
    assert "regular expression" in refused({"subscribePattern": "("}, without=("subscribe",))
    assert "must be JSON" in refused({"assign": '{"t": [-1]}'}, without=("subscribe",))


def test_a_stream_has_no_end_and_a_batch_no_rate(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OptionsError, match="endingOffsets is for batch"):
        source_options(BASE | {"endingOffsets": "latest"}).for_mode("stream")
    limited = source_options(BASE | {"maxOffsetsPerTrigger": "1"})
    assert limited.for_mode("batch") is limited
    assert "a batch ignores it" in caplog.text


@pytest.mark.parametrize("starting", ["latest", '{"t": {"0": -1}}'])
def test_a_batch_cannot_start_at_latest(starting: str) -> None:
    options = source_options(BASE | {"startingOffsets": starting})
    assert options.for_mode("stream") is options
    with pytest.raises(OptionsError, match="cannot start at latest"):
        options.for_mode("batch")


def test_the_sink_knows_its_own_options_and_sparks() -> None:
    given = {"bootstrap.servers": "h:1", "checkpointLocation": "/c", "queryName": "q"}
    assert sink_options(given) == SinkOptions("h:1")
    assert sink_options(given | {"TOPIC": "t", "sinkid": "s", "transactionTimeoutMs": "5"}) == (
        SinkOptions("h:1", topic="t", sink_id="s", transaction_timeout_ms=5)
    )
    assert not sink_options(given | {"deliveryGuarantee": "at-least-once"}).is_exactly_once
    for mistake in ({"deliveryGuarantee": "once"}, {"sinkId": "a/b"}, {"sinkId": "a" * 151}):
        with pytest.raises(OptionsError, match=next(iter(mistake))):
            sink_options(given | mistake)
    with pytest.raises(OptionsError, match="is for reading"):
        sink_options(given | {"subscribe": "t"})


def test_options_and_their_errors_go_to_executors() -> None:
    options = source_options(BASE | {"startingOffsets": '{"t": {"0": 7}}'})
    assert pickle.loads(pickle.dumps(options)) == options
    error = pickle.loads(pickle.dumps(OptionsError("what to do")))
    assert str(error) == "what to do"
