"""Topics and brokers have configs.

Broker configs hold for all brokers, so any node describes those of any broker. They are changed
only for all of them, by the resource `BROKER` without a name, Kafka's cluster-wide default. Topic
configs set there are the defaults of all topics. A single broker has no configs to remove, so that
a removal there changes nothing. Kafka's tools remove throttles after each reassignment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from raftlog.kafka.call import Call
from raftlog.kafka.handlers.brokers import GATEWAY_ID
from raftlog.kafka.handlers.names import (
    NONE,
    UNSUPPORTED_VERSION,
    by,
    cluster_code,
    code,
    deadline_of,
    in_turns,
    unknown_topic_code,
)
from raftlog.kafka.messages import configs as messages
from raftlog.metadata.configs.broker import find_cluster_setting
from raftlog.metadata.configs.topic import ConfigDescription, ConfigSource, find_entry
from raftlog.metadata.configs.values import ConfigEntry, ConfigType
from raftlog.record.errors import BAD_REQUEST, INVALID_CONFIG, UNKNOWN_TOPIC, LogError
from raftlog.record.types import BrokerId

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
LISTED: Final = frozenset([TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP])
"""Resource types of ListConfigResources. Only topics and brokers have configs here."""

DYNAMIC_TOPIC: Final = 1
DYNAMIC_DEFAULT_BROKER: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5
SOURCES: Final = {
    ConfigSource.TOPIC: DYNAMIC_TOPIC,
    ConfigSource.CLUSTER: DYNAMIC_DEFAULT_BROKER,
    ConfigSource.NODE: STATIC_BROKER,
    ConfigSource.DEFAULT: DEFAULT,
}
TYPES: Final = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
}

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

DESCRIBED_MAX: Final = 100_000
"""Configs of one response, with up to 300 bytes each. Further resources get an error."""


class _Change(NamedTuple):
    """The configs of one resource to be set, and those to return to their defaults."""

    values: dict[str, str]
    removals: dict[str, None]


async def describe_configs(
    call: Call, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse:
    """32. Returns values in force, with their sources."""
    results: list[messages.DescribeConfigsResult] = []
    count = 0
    async for resource in in_turns(call, dict.fromkeys(request.resources)):
        try:
            await call.budget.reserve(1)
            described = _chosen(resource, _describe(call, resource, count))
            await call.budget.reserve(*_size(request, described))
        except LogError as error:
            error_code = _error_code(resource.resource_type, error)
            if error.entry is UNKNOWN_TOPIC:
                error_code = unknown_topic_code(resource.resource_name)
            results.append(
                messages.DescribeConfigsResult(
                    error_code,
                    error.message,
                    resource.resource_type,
                    resource.resource_name,
                )
            )
            continue
        count += len(described)
        results.append(
            messages.DescribeConfigsResult(
                error_code=NONE,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_described(request, config) for config in described),
            )
        )
    return messages.DescribeConfigsResponse(results=tuple(results))


def _describe(
    call: Call, resource: messages.DescribeConfigsResource, before: int
) -> list[ConfigDescription]:
    """All configs of a resource, after `before` others of the response. Raises LogError."""
    if before >= DESCRIBED_MAX:
        raise LogError(BAD_REQUEST, "These are too many configs. Describe fewer at once.")
    admin, name = call.broker.admin, resource.resource_name
    if resource.resource_type == TOPIC:
        _, described = admin.describe_configs(call.principal, name)
        return described
    if resource.resource_type != BROKER:
        raise _unknown_type(resource.resource_type)
    if name:
        _check_broker(call, name)
        own = admin.broker_configs(call.principal)
        return own + _set_for_all(admin.topic_defaults(call.principal))
    # Without a broker, the configs set for all of them are meant.
    return _set_for_all(admin.broker_configs(call.principal) + admin.topic_defaults(call.principal))


def _chosen(
    resource: messages.DescribeConfigsResource, described: list[ConfigDescription]
) -> list[ConfigDescription]:
    """The configs of the wanted names. Without names, all configs."""
    if not resource.configuration_keys:
        return described
    names = frozenset(resource.configuration_keys)
    return [config for config in described if config.entry.name in names]


def _set_for_all(described: Iterable[ConfigDescription]) -> list[ConfigDescription]:
    return [config for config in described if config.source is ConfigSource.CLUSTER]


def _size(
    request: messages.DescribeConfigsRequest, described: Sequence[ConfigDescription]
) -> tuple[int, int]:
    """Rows and bytes of the configs in the response."""
    rows, size = len(described), sum(len(config.value) for config in described)
    if request.include_synonyms:
        rows += sum(len(config.synonyms) for config in described)
        size += sum(len(value) for config in described for _, value in config.synonyms)
    if request.include_documentation:
        size += sum(len(config.entry.doc) for config in described)
    return rows, size


def _described(
    request: messages.DescribeConfigsRequest, config: ConfigDescription
) -> messages.DescribeConfigsResourceResult:
    synonyms: tuple[messages.DescribeConfigsSynonym, ...] = ()
    if request.include_synonyms:
        synonyms = tuple(
            messages.DescribeConfigsSynonym(config.entry.name, value, SOURCES[source])
            for source, value in config.synonyms
        )
    return messages.DescribeConfigsResourceResult(
        config.entry.name,
        config.value,
        config_source=SOURCES[config.source],
        synonyms=synonyms,
        config_type=TYPES[config.entry.type],
        documentation=config.entry.doc if request.include_documentation else None,
    )


async def incremental_alter_configs(
    call: Call, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    """44. Sets, unsets, or changes lists, of all configs of a resource or none."""
    counts = Counter(
        (resource.resource_type, resource.resource_name) for resource in request.resources
    )
    responses: dict[
        tuple[int, str], messages.IncrementalAlterConfigsAlterConfigsResourceResponse
    ] = {}
    async for resource in in_turns(call, request.resources):
        kind, name = key = resource.resource_type, resource.resource_name
        try:
            _check_changeable(call, kind, name, counts[key])
            change = _change_of(call, kind, name, resource.configs)
            if kind == BROKER and name:
                change = _of_one_broker(change)
            await _alter(call, kind, name, change, validate_only=request.validate_only)
        except LogError as error:
            responses[key] = messages.IncrementalAlterConfigsAlterConfigsResourceResponse(
                _error_code(kind, error), error.message, kind, name
            )
        else:
            responses[key] = messages.IncrementalAlterConfigsAlterConfigsResourceResponse(
                NONE, None, kind, name
            )
    return messages.IncrementalAlterConfigsResponse(responses=tuple(responses.values()))


def _change_of(
    call: Call,
    kind: int,
    name: str,
    configs: Iterable[messages.IncrementalAlterConfigsAlterableConfig],
) -> _Change:
    """The change that the operations amount to. Raises LogError."""
    change = _Change({}, {})
    present: Mapping[str, str] | None = None
    for config in configs:
        if config.name in change.values or config.name in change.removals:
            raise LogError(BAD_REQUEST, f"The request changes {config.name} twice.")
        if config.config_operation == DELETE:
            change.removals[config.name] = None
        elif config.config_operation not in {SET, APPEND, SUBTRACT}:
            raise LogError(BAD_REQUEST, f"There is no operation {config.config_operation}.")
        elif config.value is None:
            raise LogError(BAD_REQUEST, f"Config {config.name} has no value.")
        elif config.config_operation == SET:
            change.values[config.name] = config.value
        else:
            entry = find_entry(config.name) if kind == TOPIC else find_cluster_setting(config.name)
            if present is None:
                present = _values(call, kind, name)
            words = _changed_list(
                entry, present.get(config.name, ""), config.config_operation, config.value
            )
            change.values[config.name] = words
    return change


def _values(call: Call, kind: int, name: str) -> Mapping[str, str]:
    """The values in force. Of two concurrent changes, the later one wins."""
    admin = call.broker.admin
    if kind == TOPIC:
        _, described = admin.describe_configs(call.principal, name)
    else:
        described = admin.broker_configs(call.principal) + admin.topic_defaults(call.principal)
    return {config.entry.name: config.value for config in described}


def _changed_list(entry: ConfigEntry, present: str, operation: int, value: str) -> str:
    """The list with more words, or fewer. Raises LogError INVALID_CONFIG for another type."""
    if entry.type is not ConfigType.LIST:
        raise LogError(
            INVALID_CONFIG, f"{entry.name} is no list: it can be set, but not appended to or cut."
        )
    words = _words(present)
    changes = _words(value)
    if operation == SUBTRACT:
        return ",".join(word for word in words if word not in changes)
    return ",".join(dict.fromkeys([*words, *changes]))


def _words(value: str) -> list[str]:
    return [word for part in value.split(",") if (word := part.strip())]


async def alter_configs(
    call: Call, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    """33. Replaces all configs of a resource."""
    counts = Counter(
        (resource.resource_type, resource.resource_name) for resource in request.resources
    )
    responses: dict[tuple[int, str], messages.AlterConfigsResourceResponse] = {}
    async for resource in in_turns(call, request.resources):
        kind, name = key = resource.resource_type, resource.resource_name
        try:
            _check_changeable(call, kind, name, counts[key])
            if kind == BROKER and name:
                raise _not_of_one_broker()
            change = _Change(_whole(resource.configs), {})
            await _alter(
                call, kind, name, change, replaces=True, validate_only=request.validate_only
            )
        except LogError as error:
            responses[key] = messages.AlterConfigsResourceResponse(
                _error_code(kind, error), error.message, kind, name
            )
        else:
            responses[key] = messages.AlterConfigsResourceResponse(NONE, None, kind, name)
    return messages.AlterConfigsResponse(responses=tuple(responses.values()))


def _whole(configs: Iterable[messages.AlterConfigsAlterableConfig]) -> dict[str, str]:
    """All configs of a resource after the change. Raises LogError."""
    values: dict[str, str] = {}
    for config in configs:
        if config.value is None or config.name in values:
            raise LogError(BAD_REQUEST, f"Config {config.name} needs one value.")
        values[config.name] = config.value
    return values


TIMEOUT_MS: Final = 30_000
"""Milliseconds for a change, because these requests have no timeout field."""


async def _alter(
    call: Call,
    kind: int,
    name: str,
    change: _Change,
    *,
    replaces: bool = False,
    validate_only: bool,
) -> None:
    """Execute the change of a resource that may be changed. Raises LogError."""
    admin, values, removals = call.broker.admin, change.values, list(change.removals)

    async def alter() -> None:
        if kind == TOPIC:
            await admin.alter_configs(
                call.principal,
                name,
                values,
                removals,
                replaces=replaces,
                validate_only=validate_only,
            )
        else:
            await admin.alter_cluster_settings(
                call.principal, values, removals, replaces=replaces, validate_only=validate_only
            )

    await by(deadline_of(TIMEOUT_MS), alter)


def _check_changeable(call: Call, kind: int, name: str, count: int) -> None:
    """Raise LogError BAD_REQUEST unless the resource, named `count` times, can be changed."""
    if count > 1:
        raise LogError(BAD_REQUEST, "The request names this resource twice.")
    if kind not in {TOPIC, BROKER}:
        raise _unknown_type(kind)
    if kind == BROKER and name:
        _check_broker(call, name)


def _of_one_broker(change: _Change) -> _Change:
    """The empty change of one broker. Raises LogError BAD_REQUEST if it sets values."""
    if change.values:
        raise _not_of_one_broker()
    return _Change({}, {})


def _not_of_one_broker() -> LogError:
    return LogError(
        BAD_REQUEST,
        "Broker configs hold for all brokers. Change them without a broker id, as the default of "
        "all brokers.",
    )


def _check_broker(call: Call, name: str) -> None:
    """Raise LogError BAD_REQUEST unless there is a broker of that id."""
    is_number = name.isascii() and name.isdigit() and len(name) <= 10
    broker_id = BrokerId(int(name)) if is_number else None
    is_gateway = call.any_node and broker_id == GATEWAY_ID
    if not (is_gateway or broker_id in call.broker.admin.brokers()):
        raise LogError(BAD_REQUEST, f"There is no broker {name[:80]!r}.")


def _unknown_type(kind: int) -> LogError:
    return LogError(BAD_REQUEST, f"Resources of type {kind} have no configs here.")


def _error_code(kind: int, error: LogError) -> int:
    return code(error) if kind == TOPIC else cluster_code(error)


async def list_config_resources(
    call: Call, request: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """74. Returns all topics and brokers, and in version 0, as client metrics, nothing."""
    wanted = frozenset(request.resource_types) or LISTED
    if call.version == 0:
        wanted = frozenset([CLIENT_METRICS])
    if not wanted <= LISTED:
        return messages.ListConfigResourcesResponse(error_code=UNSUPPORTED_VERSION)
    try:
        topics, brokers = call.broker.admin.config_resources(call.principal)
        await call.budget.reserve(len(topics) + len(brokers))
    except LogError as error:
        return messages.ListConfigResourcesResponse(error_code=cluster_code(error))
    found: list[messages.ConfigResource] = []
    if TOPIC in wanted:
        found += [messages.ConfigResource(name, TOPIC) for name in topics]
    if BROKER in wanted:
        found += [messages.ConfigResource(str(broker_id), BROKER) for broker_id in brokers]
    return messages.ListConfigResourcesResponse(config_resources=tuple(found))
