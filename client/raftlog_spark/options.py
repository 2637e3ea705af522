"""Options of the source and the sink: the names and defaults of Spark's Kafka source.

Spark passes options as strings, with names possibly lower-cased. Names are compared without case.
An unknown name is an error that shows the nearest known name, because a misspelt `startingOffset`
that silently reads from the wrong offset costs more than a refused query.

Of two options for the same setting, the more exact one wins, as in the Kafka source:
`startingTimestamp` before `startingOffsetsByTimestamp` before `startingOffsets`; `ending...`
likewise. Only one default differs. `isolationLevel` is `read_committed`, as in the Python client.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from raftlog_spark.errors import RaftlogSparkError
from raftlog_spark.source.offsets import (
    EARLIEST,
    LATEST,
    EachOffset,
    EachTime,
    Everywhere,
    SameTime,
    StartPoint,
    Strategy,
    parse_assign,
    parse_offsets,
    parse_times,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

FETCH_BYTES_DEFAULT = 8 << 20
FETCH_BYTES_MIN = 64 << 10
FETCH_BYTES_MAX = 64 << 20
MAX_TRIGGER_DELAY_MS_DEFAULT = 15 * 60 * 1000
TRANSACTION_TIMEOUT_MS_DEFAULT = 15 * 60 * 1000
"""The longest that a cluster allows by default."""
SINK_ID_CHARACTERS_MAX = 150
EXACTLY_ONCE: Final = "exactly-once"
DELIVERY_GUARANTEES: Final = (EXACTLY_ONCE, "at-least-once")
VALUE_SHOWN_MAX = 80
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Mode = Literal["batch", "stream"]
Isolation = Literal["read_committed", "read_uncommitted"]

_COMMON: Final = {
    "bootstrap.servers": "Addresses of nodes, `host:port` with commas; one is enough. Required. "
    "Also `kafka.bootstrap.servers`."
}
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    **_COMMON,
    "subscribe": "Topics, with commas. One of subscribe, subscribePattern and assign is required.",
    "subscribePattern": "A regular expression of topics; it must match the whole name.",
    "assign": 'Partitions: JSON, `{"topic": [0, 1]}`.',
    "startingOffsets": "`earliest` (default of a batch), `latest` (default of a stream), or JSON, "
    '`{"topic": {"0": 23, "1": -2}}` with -2 for earliest and -1 for latest.',
    "startingTimestamp": "Start at the first record of this time or later, in all partitions; "
    "ms since 1970-01-01 UTC.",
    "startingOffsetsByTimestamp": 'The same by partition: JSON, `{"topic": {"0": 1700000000000}}`.',
    "startingOffsetsByTimestampStrategy": "Where no record is that young: `error` (default) "
    "or `latest`.",
    "endingOffsets": "Batch only: `latest` (default), or JSON as in startingOffsets.",
    "endingTimestamp": "Batch only: end before the first record of this time or later.",
    "endingOffsetsByTimestamp": "Batch only: the same by partition.",
    "maxOffsetsPerTrigger": "Stream only: offsets of a micro-batch, at most, over all partitions.",
    "minOffsetsPerTrigger": "Stream only: wait for so many offsets, up to maxTriggerDelay.",
    "maxTriggerDelay": "Stream only: the longest wait for minOffsetsPerTrigger, such as `30s`; "
    "default `15m`.",
    "minPartitions": "Spark partitions, at least: several tasks share a large partition.",
    "maxRecordsPerPartition": "Offsets of one Spark partition, at most.",
    "failOnDataLoss": "`true` (default): a stream fails if offsets that it has not read are gone.",
    "includeHeaders": "`true`: the column `headers` is there. Default `false`.",
    "isolationLevel": "`read_committed` (default): up to the last stable offset, without records "
    "of aborted transactions. `read_uncommitted`: up to the high watermark, with them. Also "
    "`kafka.isolation.level`.",
    "commitToGroup": "Stream only: a group with committed offsets that follow the query, so that "
    "its lag is seen as that of any group. The query itself goes on from its checkpoint. The group "
    "must have no members.",
    "fetchBytes": "Bytes of one fetch, 64 KiB to 64 MiB; default 8 MiB.",
}
"""The options of the source by name, with their meaning (docs/reference/spark-options.md)."""
SINK_OPTIONS: Final[Mapping[str, str]] = {
    **_COMMON,
    "topic": "The topic of all rows; without it, the column `topic` names it.",
    "deliveryGuarantee": "`exactly-once` (default): a batch is readable as a whole, each row once, "
    "when Spark has committed it; readers of uncommitted records see more. `at-least-once`: rows "
    "are readable as soon as they are written, and failures leave duplicates.",
    "sinkId": "A name for this sink, in place of the query's id. In `foreachBatch` it makes the "
    "write exactly once: each write of the function needs a name of its own.",
    "transactionTimeoutMs": "A task must write its rows within this time, and the batch must be "
    "committed within this time after that, or it fails. For so long, what a job that was killed "
    "for good has left holds back readers. Default 900000 (15 minutes), the most that a cluster "
    "allows by default.",
}
"""The options of the sink by name, with their meaning."""
# Added by Spark itself to the options of a streaming sink.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
_ALIASES = {
    "kafka.bootstrap.servers": "bootstrap.servers",
    "kafka.isolation.level": "isolationLevel",
}


class OptionsError(RaftlogSparkError):
    """An option is missing, misspelt, contradicts another, or has an invalid value."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read. Exactly one of the three fields is set. `assign` maps topics to
    partitions. `pattern`, in Python's syntax, must match a topic's whole name."""

    assign: Mapping[str, tuple[int, ...]] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The settings of a reader, plain data, which pickles to executors.

    Counts are of offsets, including aborted and control records. `starting` None means the mode's
    default, earliest for a batch, latest for a stream.
    """

    bootstrap_servers: str
    subscription: Subscription
    starting: StartPoint | None = None
    ending: StartPoint = LATEST
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS_DEFAULT
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    isolation: Isolation = "read_committed"
    commit_to_group: str | None = None
    fetch_bytes: int = FETCH_BYTES_DEFAULT
    stream_only: tuple[str, ...] = ()
    batch_only: tuple[str, ...] = ()

    def for_mode(self, mode: Mode) -> SourceOptions:
        """These options, checked for the kind of query. Raises OptionsError for a stream with an
        end, or a batch that starts at latest."""
        if mode == "stream" and self.batch_only:
            raise OptionsError(
                f"option {self.batch_only[0]} is for batch queries only: a stream has no end"
            )
        if mode == "batch" and self.stream_only:
            # As in Spark's Kafka source, a batch reads all at once anyway.
            _log.warning("option %s is for streams: a batch ignores it", self.stream_only[0])
        if mode == "batch" and _is_latest(self.starting):
            raise OptionsError(
                "a batch query cannot start at latest (-1): there is nothing after it; "
                "use earliest, offsets or a timestamp, or readStream"
            )
        return self

    def starting_point(self, mode: Mode) -> StartPoint:
        """The start of a new query."""
        if self.starting is not None:
            return self.starting
        return EARLIEST if mode == "batch" else LATEST


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The settings of a writer. `topic` overrides the column of the same name."""

    bootstrap_servers: str
    topic: str | None = None
    sink_id: str | None = None
    is_exactly_once: bool = True
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS_DEFAULT


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read` and `spark.readStream`. Raises OptionsError for the first error,
    with the remedy."""
    given = _GivenOptions(options, tuple(SOURCE_OPTIONS), "source")
    bootstrap = given.bootstrap()
    subscription = _subscription(given)
    strategy = given.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    starting = _point(given, "starting", "latest" if strategy == "latest" else "error")
    ending = _point(given, "ending", "latest")
    if _is_earliest(ending):
        raise OptionsError("endingOffsets cannot be earliest (-2): use latest or offsets")
    for point, option in ((starting, "startingOffsets"), (ending, "endingOffsets")):
        _check_against(subscription, point, option)
    _check_order(starting, ending)
    most = given.optional("maxOffsetsPerTrigger", _parse_count)
    least = given.optional("minOffsetsPerTrigger", _parse_count)
    if most is not None and least is not None and least > most:
        raise OptionsError(
            f"minOffsetsPerTrigger ({least}) must not exceed maxOffsetsPerTrigger ({most})"
        )
    isolation = given.choice(
        "isolationLevel", "read_committed", ("read_committed", "read_uncommitted")
    )
    return SourceOptions(
        bootstrap_servers=bootstrap,
        subscription=subscription,
        starting=starting,
        ending=LATEST if ending is None else ending,
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=given.or_default(
            "maxTriggerDelay", _parse_duration_ms, MAX_TRIGGER_DELAY_MS_DEFAULT
        ),
        min_partitions=given.optional("minPartitions", _parse_count),
        max_records_per_partition=given.optional("maxRecordsPerPartition", _parse_count),
        fail_on_data_loss=given.or_default("failOnDataLoss", _parse_boolean, True),
        include_headers=given.or_default("includeHeaders", _parse_boolean, False),
        isolation="read_committed" if isolation == "read_committed" else "read_uncommitted",
        commit_to_group=given.optional("commitToGroup", _parse_group),
        fetch_bytes=given.or_default("fetchBytes", _fetch_bytes, FETCH_BYTES_DEFAULT),
        stream_only=given.present(
            "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitToGroup"
        ),
        batch_only=given.present("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of `df.write` and `df.writeStream`. Raises OptionsError for the first error."""
    given = _GivenOptions(options, tuple(SINK_OPTIONS), "sink")
    return SinkOptions(
        bootstrap_servers=given.bootstrap(),
        topic=given.optional("topic", _parse_name),
        sink_id=given.optional("sinkId", _parse_sink_id),
        is_exactly_once=given.choice("deliveryGuarantee", EXACTLY_ONCE, DELIVERY_GUARANTEES)
        == EXACTLY_ONCE,
        transaction_timeout_ms=given.or_default(
            "transactionTimeoutMs", _parse_count, TRANSACTION_TIMEOUT_MS_DEFAULT
        ),
    )


class _GivenOptions:
    """The given options by lower-cased name, with their original spelling."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], side: str) -> None:
        self._side = side
        self._values: dict[str, str] = {}
        spellings = {name.lower(): name for name in known}
        aliases = {alias.lower(): name for alias, name in _ALIASES.items() if name in known}
        for key, value in options.items():
            lowered = key.lower()
            if lowered in _SPARKS_OWN and side == "sink":
                continue
            name = aliases.get(lowered) or spellings.get(lowered)
            if name is None:
                raise OptionsError(_unknown(key, side, known))
            if self._values.setdefault(name, value) != value:
                raise OptionsError(f"{name} is given twice, with different values: keep one")

    def bootstrap(self) -> str:
        servers = self._values.get("bootstrap.servers", "").strip()
        addresses = [part.strip() for part in servers.split(",") if part.strip()]
        if not addresses:
            raise OptionsError(
                'option "bootstrap.servers" is missing: give the addresses of raftlog\'s nodes, '
                'as in .option("bootstrap.servers", "host1:8480,host2:8480")'
            )
        for address in addresses:
            if not re.fullmatch(
                r"(http://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(:\d{1,5})?/?", address
            ):
                raise OptionsError(f"bootstrap.servers: {address!r} is not host:port")
        return ",".join(addresses)

    def present(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in self._values)

    def optional(self, name: str, parse: Callable[[str], T]) -> T | None:
        if name not in self._values:
            return None
        value = self._values[name].strip()
        try:
            return parse(value)
        except ValueError as error:
            raise OptionsError(f"option {name} = {_quoted(value)}: {error}") from error

    def or_default(self, name: str, parse: Callable[[str], T], default: T) -> T:
        value = self.optional(name, parse)
        return default if value is None else value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        def parse(value: str) -> str:
            if value.lower() not in choices:
                raise ValueError(f"must be one of: {', '.join(choices)}")
            return value.lower()

        return self.or_default(name, parse, default)


def _unknown(key: str, side: str, known: tuple[str, ...]) -> str:
    other = SINK_OPTIONS if side == "source" else SOURCE_OPTIONS
    if key.lower() in {name.lower() for name in other}:
        place = "writing" if side == "source" else "reading"
        return f"option {key} is for {place}, not for a {side}: leave it out"
    if key.lower() == "path":
        return (
            "raftlog has no paths: name topics with .option(...), and call load() and save() "
            "without an argument"
        )
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), lowered, n=1)
    hint = f"did you mean {lowered[near[0]]}? " if near else ""
    return f"raftlog's {side} has no option {_quoted(key)}: {hint}it knows {', '.join(known)}"


def _subscription(given: _GivenOptions) -> Subscription:
    chosen = given.present("assign", "subscribe", "subscribePattern")
    if len(chosen) != 1:
        what = "none is given" if not chosen else f"{' and '.join(chosen)} are given"
        raise OptionsError(
            "give exactly one of subscribe (topics, with commas), subscribePattern (a regular "
            'expression) and assign (JSON, {"topic": [0, 1]}): ' + what
        )
    return Subscription(
        assign=given.optional("assign", parse_assign),
        topics=given.optional("subscribe", _parse_topics),
        pattern=given.optional("subscribePattern", _parse_pattern),
    )


def _point(
    given: _GivenOptions, side: Literal["starting", "ending"], missing: Strategy
) -> StartPoint | None:
    same = given.optional(f"{side}Timestamp", _parse_timestamp_ms)
    each = given.optional(f"{side}OffsetsByTimestamp", parse_times)
    plain = given.optional(f"{side}Offsets", parse_offsets)
    if same is not None:
        return SameTime(same, missing)
    if each is not None:
        return EachTime(each, missing)
    return plain


def _check_against(subscription: Subscription, point: StartPoint | None, option: str) -> None:
    """Check without the cluster for offsets of topics outside of the subscription."""
    if not isinstance(point, EachOffset | EachTime):
        return
    table: Iterable[str] = point.offsets if isinstance(point, EachOffset) else point.times_ms
    wanted: Iterable[str] | None = subscription.topics
    if subscription.assign is not None:
        wanted = subscription.assign
    if wanted is not None and sorted(table) != sorted(wanted):
        raise OptionsError(
            f"{option}: the topics named there ({', '.join(sorted(table))}) must be those that "
            f"are read ({', '.join(sorted(wanted))})"
        )


def _check_order(starting: StartPoint | None, ending: StartPoint | None) -> None:
    if not isinstance(starting, EachOffset) or not isinstance(ending, EachOffset):
        return
    for topic, row in starting.offsets.items():
        for number, start in row.items():
            end = ending.offsets.get(topic, {}).get(number, -1)
            if 0 <= end < start:
                raise OptionsError(
                    f"{topic}/{number} would end at {end}, before it starts: {start}"
                )


def _is_latest(point: StartPoint | None) -> bool:
    if isinstance(point, EachOffset):
        return any(-1 in table.values() for table in point.offsets.values())
    return point == LATEST


def _is_earliest(point: StartPoint | None) -> bool:
    if isinstance(point, EachOffset):
        return any(-2 in table.values() for table in point.offsets.values())
    return isinstance(point, Everywhere) and point == EARLIEST


def _fetch_bytes(value: str) -> int:
    count = _parse_count(value)
    if not FETCH_BYTES_MIN <= count <= FETCH_BYTES_MAX:
        raise ValueError(f"must be from {FETCH_BYTES_MIN} to {FETCH_BYTES_MAX}")
    return count


def _parse_topics(value: str) -> tuple[str, ...]:
    """Topics, separated by commas. Each once, in the given order."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(found):
        raise ValueError("must be topics, with commas between them")
    return found


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if not value:
        raise ValueError("must not be empty")
    return value


def _parse_name(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _parse_group(value: str) -> str:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,255}", value):
        raise ValueError("must be a group id: 1 to 255 characters without control characters")
    return value


def _parse_sink_id(value: str) -> str:
    if not 1 <= len(value) <= SINK_ID_CHARACTERS_MAX or "/" in value:
        raise ValueError(f"must have 1 to {SINK_ID_CHARACTERS_MAX} characters, without a slash")
    if not value.isprintable():
        raise ValueError("must have printable characters only")
    return value


def _parse_count(value: str) -> int:
    if not re.fullmatch(r"\+?\d{1,18}", value) or int(value) == 0:
        raise ValueError("must be a whole number above 0")
    return int(value)


def _parse_timestamp_ms(value: str) -> int:
    if not re.fullmatch(r"\d{1,18}", value):
        raise ValueError("must be milliseconds since 1970-01-01 UTC")
    return int(value)


def _parse_duration_ms(value: str) -> int:
    """A time in milliseconds. Text without a unit is in milliseconds."""
    match = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", value.lower())
    unit = match and (match[2] or "ms")
    if not match or unit not in _UNITS_MS:
        raise ValueError("must be a time such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[str(unit)]


def _parse_boolean(value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _quoted(value: str) -> str:
    """A value for an error's text, quoted, and cut if long."""
    return repr(value if len(value) <= VALUE_SHOWN_MAX else value[: VALUE_SHOWN_MAX - 3] + "...")
