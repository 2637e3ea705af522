"""The data endpoints' part of the route table."""

from __future__ import annotations

from raftlog.api.records import (
    FetchRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceResults,
    TimesRequest,
    TimesResponse,
)
from raftlog.http.routing import QueryParameter, Route
from raftlog.record.errors import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    CORRUPT_BATCH,
    DISK_FULL,
    INVALID_BODY,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    OFFSET_OUT_OF_RANGE,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    RECORD_TOO_LARGE,
    RETRIABLE,
    STORAGE_FAILED,
    UNKNOWN_PARTITION,
    UNKNOWN_TOPIC,
    UNSUPPORTED_FORMAT,
    UNSUPPORTED_MEDIA_TYPE,
)
from raftlog.record.frames import BATCHES_MEDIA_TYPE
from raftlog.rest import (
    produce_options,
    v1_batches,
    v1_offsets,
    v1_tail,
    v2_produce,
    v2_records,
    v2_topics,
    v3_produce,
)
from raftlog.rest.documents import (
    BatchDocument,
    ProduceDocument,
    RecordDocument,
    RecordDocumentV3,
)

_TOPIC = "/topics/{topic}"
_PARTITION = "/topics/{topic}/partitions/{partition}"
_V3_TOPIC = "/v3/clusters/{cluster}/topics/{topic}"

_READ_ERRORS = (UNKNOWN_TOPIC, UNKNOWN_PARTITION, NO_LEADER, STORAGE_FAILED)
_PRODUCE_ERRORS = (
    BAD_REQUEST,
    UNKNOWN_TOPIC,
    UNKNOWN_PARTITION,
    OUT_OF_ORDER_SEQUENCE,
    PRODUCER_FENCED,
    BODY_TOO_LARGE,
    RECORD_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    INVALID_BODY,
    RETRIABLE,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    STORAGE_FAILED,
    DISK_FULL,
)

_RECORDS_QUERY = (
    QueryParameter("offset", str, "Where to begin: a number, earliest or latest.", "earliest"),
    QueryParameter("timestamp", int, "Begin at the first record that is not older (ms)."),
    QueryParameter("end_offset", int, "Stop before this offset."),
    QueryParameter("timeout", int, "Milliseconds to wait for the first record.", 0),
    QueryParameter(
        "max_bytes",
        int,
        "About how many stored bytes to answer; at least one batch.",
        v2_records.MAX_BYTES_DEFAULT,
    ),
    QueryParameter("max_records", int, "Most records to answer.", v2_records.MAX_RECORDS_DEFAULT),
    QueryParameter(
        "replica",
        str,
        "leader; or any: the node that is asked may answer from its own replica, up to what it "
        "knows to be committed.",
        v2_records.LEADER,
    ),
)
_TAIL_QUERY = (
    QueryParameter("partition", str, "Partition numbers, such as 0,2; all if left out."),
    QueryParameter("offset", str, "Where to begin: a number, earliest or latest.", "latest"),
    QueryParameter("format", str, "json, binary (base64) or text.", "json"),
    QueryParameter("last_event_id", str, "As the header Last-Event-ID: where to go on."),
)


def _v2_topics() -> tuple[Route, ...]:
    media = v2_topics.V2_OFFERED
    return (
        Route(
            "GET",
            "/topics",
            v2_topics.list_topics,
            "Names of all topics.",
            tag="topics",
            response_type=list[str],
            response_media_types=media,
        ),
        Route(
            "GET",
            _TOPIC,
            v2_topics.describe_topic,
            "One topic, with its partitions and replicas.",
            tag="topics",
            response_type=v2_topics.TopicAnswer,
            response_media_types=media,
            errors=(UNKNOWN_TOPIC,),
        ),
        Route(
            "GET",
            f"{_TOPIC}/partitions",
            v2_topics.list_partitions,
            "A topic's partitions.",
            tag="topics",
            response_type=list[v2_topics.PartitionAnswer],
            response_media_types=media,
            errors=(UNKNOWN_TOPIC,),
        ),
        Route(
            "GET",
            _PARTITION,
            v2_topics.describe_partition,
            "One partition, with its replicas.",
            tag="topics",
            response_type=v2_topics.PartitionAnswer,
            response_media_types=media,
            errors=(UNKNOWN_TOPIC, UNKNOWN_PARTITION),
        ),
        Route(
            "GET",
            f"{_PARTITION}/offsets",
            v2_topics.partition_offsets,
            "Which offsets of a partition can be read.",
            tag="topics",
            response_type=v2_topics.OffsetsAnswer,
            response_media_types=media,
            errors=_READ_ERRORS,
        ),
    )


def _v2_records() -> tuple[Route, ...]:
    return (
        Route(
            "POST",
            _TOPIC,
            v2_produce.produce_to_topic,
            "Write records to a topic.",
            tag="records",
            query=produce_options.IDEMPOTENT_QUERY,
            request_type=ProduceDocument,
            request_media_types=tuple(v2_produce.RECORD_MEDIA_TYPES),
            response_type=v2_produce.ProduceAnswer,
            response_media_types=(v2_produce.V2_MEDIA_TYPE,),
            errors=_PRODUCE_ERRORS,
        ),
        Route(
            "POST",
            _PARTITION,
            v2_produce.produce_to_partition,
            "Write records to one partition.",
            tag="records",
            query=produce_options.IDEMPOTENT_QUERY,
            request_type=ProduceDocument,
            request_media_types=tuple(v2_produce.RECORD_MEDIA_TYPES),
            response_type=v2_produce.ProduceAnswer,
            response_media_types=(v2_produce.V2_MEDIA_TYPE,),
            errors=_PRODUCE_ERRORS,
        ),
        Route(
            "GET",
            f"{_PARTITION}/records",
            v2_records.read_records,
            "Read records of a partition from an offset on. The headers "
            f"{v2_records.HIGH_WATERMARK_HEADER}, {v2_records.NEXT_OFFSET_HEADER} (where to "
            f"go on) and {v2_records.LOG_START_HEADER} come with them.",
            tag="records",
            query=_RECORDS_QUERY,
            response_type=list[RecordDocument],
            response_media_types=tuple(v2_records.READ_MEDIA_TYPES),
            errors=(BAD_REQUEST, *_READ_ERRORS, UNSUPPORTED_FORMAT, OFFSET_OUT_OF_RANGE),
            cancel_on_disconnect=True,
        ),
    )


def _v3_records() -> tuple[Route, ...]:
    return (
        Route(
            "POST",
            f"{_V3_TOPIC}/records",
            v3_produce.produce_records,
            "Write a stream of records: JSON objects one after another, each answered by a receipt "
            "with its own error_code (200: written).",
            tag="records",
            query=produce_options.QUERY,
            request_type=RecordDocumentV3,
            response_type=v3_produce.Receipt,
            errors=_PRODUCE_ERRORS,
        ),
        Route(
            "POST",
            f"{_V3_TOPIC}/records:batch",
            v3_produce.produce_record_batch,
            "Write records that are answered one by one, told apart by their ids.",
            tag="records",
            query=produce_options.QUERY,
            request_type=BatchDocument,
            response_type=v3_produce.BatchResponse,
            status=v3_produce.MULTI_STATUS,
            errors=_PRODUCE_ERRORS,
        ),
    )


def _v1() -> tuple[Route, ...]:
    return (
        Route(
            "POST",
            "/v1/produce",
            v1_batches.produce_batches,
            "Write record batches to many partitions. The body is frames (raftlog.record.frames); "
            "each is answered by a result of its own.",
            tag="batches",
            query=produce_options.QUERY,
            request_type=bytes,
            request_media_types=(BATCHES_MEDIA_TYPE,),
            response_type=ProduceResults,
            errors=(BODY_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_BODY, CORRUPT_BATCH),
        ),
        Route(
            "POST",
            "/v1/fetch",
            v1_batches.fetch_batches,
            "Read record batches of many partitions. The answer is frames "
            "(raftlog.record.frames), one or more for each partition, errors included.",
            tag="batches",
            request_type=FetchRequest,
            response_media_types=(BATCHES_MEDIA_TYPE,),
            errors=(INVALID_BODY,),
            cancel_on_disconnect=True,
        ),
        Route(
            "POST",
            "/v1/offsets",
            v1_offsets.bulk_offsets,
            "Which offsets can be read: `topics` lists topics, for all their partitions, or is an "
            "object with the partitions of each. This node must lead them all, unless `any_node` "
            "is true: then each partition has offsets, or an error_code of its own.",
            tag="offsets",
            request_type=OffsetsRequest,
            response_type=OffsetsResponse,
            errors=(INVALID_BODY, *_READ_ERRORS),
        ),
        Route(
            "POST",
            "/v1/offsets-for-times",
            v1_offsets.offsets_for_times,
            "The first offset that is not older than a timestamp, of many partitions. This node "
            "must lead them all, unless `any_node` is true: then each partition has an offset, "
            "null, or an error_code of its own.",
            tag="offsets",
            request_type=TimesRequest,
            response_type=TimesResponse,
            errors=(INVALID_BODY, *_READ_ERRORS),
        ),
        Route(
            "GET",
            "/v1/topics/{topic}/tail",
            v1_tail.tail_topic,
            "A topic's records as they come, without end: Server-Sent Events or lines of JSON. An "
            "event's id, sent back as Last-Event-ID, goes on after it.",
            tag="records",
            query=_TAIL_QUERY,
            response_media_types=(v1_tail.SSE, v1_tail.NDJSON),
            errors=(BAD_REQUEST, *_READ_ERRORS, UNSUPPORTED_FORMAT, OFFSET_OUT_OF_RANGE),
            streams=True,
            cancel_on_disconnect=True,
        ),
    )


ROUTES: tuple[Route, ...] = (*_v2_topics(), *_v2_records(), *_v3_records(), *_v1())
