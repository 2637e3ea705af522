"""Kafka's command line tools: each command's effect is checked, not only its exit code."""

from __future__ import annotations

import json
import re
from typing import Any

from confluent_kafka import Producer

from tests.judges.trial import REQUEST_S, Trial, check_values

PERFORMANCE_BYTES = 100


def topics_and_configs(trial: Trial) -> str:
    """TopicCommand, ConfigCommand and GetOffsetShell create, change, describe and delete."""
    tools, topic = trial.tools, trial.new_name("tool-topics")
    flags = ("--partitions", "2", "--config", "retention.ms=86400000")
    tools.run("TopicCommand", "--create", "--topic", topic, *flags, "--replication-factor", "3")
    assert topic in tools.run("TopicCommand", "--list").split()
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 2" in described and "ReplicationFactor: 3" in described, described
    assert "retention.ms=86400000" in described, described
    tools.run("TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    trial.wait_in_sync(topic)
    assert tools.run("TopicCommand", "--describe", "--topic", topic).count("Leader: ") == 4
    again = tools.outcome("TopicCommand", "--create", "--topic", topic)
    assert again.code == 1 and "TopicExistsException" in again.output + again.errors, again

    config = ("kafka.admin.ConfigCommand", "--entity-type", "topics", "--entity-name", topic)
    tools.run(*config, "--alter", "--add-config", "retention.ms=3600000,cleanup.policy=compact")
    described = tools.run(*config, "--describe")
    assert "retention.ms=3600000 " in described, described
    assert "cleanup.policy=compact " in described, described
    tools.run(*config, "--alter", "--delete-config", "cleanup.policy")
    assert "cleanup.policy" not in tools.run(*config, "--describe")
    everything = tools.run(*config, "--describe", "--all")
    assert "min.insync.replicas=" in everything, everything
    brokers = ("kafka.admin.ConfigCommand", "--entity-type", "brokers")
    name = "group.consumer.session.timeout.ms"
    assert name in tools.run(*brokers, "--entity-name", "1", "--describe", "--all")
    tools.run(*brokers, "--entity-default", "--alter", "--add-config", f"{name}=46000")
    assert f"{name}=46000" in tools.run(*brokers, "--entity-default", "--describe")
    tools.run(*brokers, "--entity-default", "--alter", "--delete-config", name)

    trial.write(topic, (b"%d" % number for number in range(40)))
    newest = tools.run("GetOffsetShell", "--topic", topic).split()
    assert sorted(newest) == [f"{topic}:{number}:10" for number in range(4)], newest
    oldest = tools.run("GetOffsetShell", "--topic", topic, "--time", "earliest").split()
    assert sorted(oldest) == [f"{topic}:{number}:0" for number in range(4)], oldest
    assert tools.run("GetOffsetShell", "--topic", topic, "--time", "max-timestamp").split()
    tools.run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tools.run("TopicCommand", "--list").split()
    return "a topic created, extended, configured, filled, deleted; broker configs changed"


def cluster_tools(trial: Trial) -> str:
    """MetadataQuorumCommand, LogDirsCommand and ReassignPartitionsCommand."""
    tools, topic = trial.tools, trial.new_topic("tool-cluster", 2, replicas=1)
    status = tools.run("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]\b", status), status
    replication = tools.run("MetadataQuorumCommand", "describe", "--replication")
    assert len(re.findall(r"\b(Leader|Follower)\b", replication)) == 3, replication
    trial.write(topic, (b"x" * 100 for _ in range(100)))
    dirs = tools.run("LogDirsCommand", "--describe", "--topic-list", topic)
    document = json.loads(dirs[dirs.index("{") :])
    sizes = [
        one["size"]
        for broker in document["brokers"]
        for directory in broker["logDirs"]
        for one in directory["partitions"]
    ]
    assert len(sizes) == 2 and min(sizes) > 50 * 100, dirs

    moved = {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": number, "replicas": [1, 2, 3]} for number in range(2)
        ],
    }
    file = trial.file(f"{topic}.json", json.dumps(moved))
    proposal = trial.file(
        f"{topic}-proposal.json", json.dumps({"version": 1, "topics": [{"topic": topic}]})
    )
    reassign = "reassign.ReassignPartitionsCommand"
    generate = ("--topics-to-move-json-file", proposal, "--broker-list", "1,2,3", "--generate")
    assert "Proposed partition reassignment configuration" in tools.run(reassign, *generate)
    throttled = ("--reassignment-json-file", file, "--execute", "--throttle", "1000000")
    refused = tools.outcome(reassign, *throttled)
    assert refused.code == 1 and "hold for all brokers" in refused.output, refused
    assert "No partition reassignments found" in tools.run(reassign, "--list")
    tools.run(reassign, "--reassignment-json-file", file, "--execute")
    trial.wait_in_sync(topic)
    verified = tools.run(reassign, "--reassignment-json-file", file, "--verify")
    assert verified.count("is completed") == 2, verified
    assert "No partition reassignments found" in tools.run(reassign, "--list")
    described = tools.run("TopicCommand", "--describe", "--topic", topic)
    assert described.count("Replicas: 1,2,3") == 2, described
    check_values([b"x" * 100] * 100, trial.read(topic))
    return "quorum and log directories described, two partitions moved from 1 to 3 replicas"


def console(trial: Trial) -> str:
    """ConsoleProducer and ConsoleConsumer, with keys, from the beginning."""
    tools, topic = trial.tools, trial.new_topic("tool-console")
    count = trial.effort.records
    lines = "".join(f"k{number}:v{number}\n" for number in range(count))
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tools.run("ConsoleProducer", "--topic", topic, *keys, stdin=lines)
    read = tools.run(
        "consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", str(count)),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
    )
    assert sorted(read.split()) == sorted(lines.split()), read[:200]
    return f"{count} lines written and read, with keys"


def performance(trial: Trial) -> str:
    """ProducerPerformance and ConsumerPerformance, plain and in transactions."""
    tools, topic = trial.tools, trial.new_topic("tool-performance")
    count = trial.effort.records
    size = ("--record-size", str(PERFORMANCE_BYTES), "--throughput", "-1")
    sent = ("--topic", topic, "--num-records", str(count), *size)
    plain = tools.run("ProducerPerformance", *sent)
    assert f"{count} records sent" in plain, plain
    transactional = ("--transactional-id", topic, "--transaction-duration-ms", "100")
    assert f"{count} records sent" in tools.run("ProducerPerformance", *sent, *transactional)
    assert len(trial.read(topic)) == 2 * count
    read = tools.run(
        "ConsumerPerformance",
        *("--topic", topic, "--num-records", str(2 * count), "--hide-header"),
        *("--timeout", "30000", "--group", trial.new_name("tool-performance")),
    )
    assert int(read.strip().splitlines()[-1].split(", ")[4]) == 2 * count, read
    return f"{count} records written plainly, {count} in transactions, {2 * count} read"


def groups(trial: Trial) -> str:
    """ConsumerGroupCommand lists, describes, resets and deletes groups of both protocols."""
    tools, topic = trial.tools, trial.new_topic("tool-groups")
    count = trial.effort.records
    trial.write(topic, (b"%d" % number for number in range(count)))
    command = "consumer.group.ConsumerGroupCommand"
    for protocol in ("classic", "consumer"):
        group = trial.new_name(f"tool-{protocol}")
        read = tools.run(
            "consumer.ConsoleConsumer",
            *("--topic", topic, "--group", group, "--max-messages", str(count)),
            *("--command-property", f"group.protocol={protocol}"),
            *("--command-property", "auto.offset.reset=earliest"),
        )
        assert len(read.split()) == count, read[:200]
        assert group in tools.run(command, "--list").split()
        described = tools.run(command, "--describe", "--group", group)
        lags = re.findall(rf"^{group}\s+{topic}\s+\d+\s+\d+\s+\d+\s+(\d+)", described, re.M)
        assert lags == ["0"] * 3, described
        state = tools.run(command, "--describe", "--group", group, "--state")
        assert "Empty" in state, state
        reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
        tools.run(command, *reset, "--execute")
        described = tools.run(command, "--describe", "--group", group, "--offsets")
        lags = re.findall(rf"^{group}\s+{topic}\s+\d+\s+0\s+\d+\s+(\d+)", described, re.M)
        assert sum(map(int, lags)) == count, described
        tools.run(command, "--delete-offsets", "--group", group, "--topic", topic)
        tools.run(command, "--delete", "--group", group)
        assert group not in tools.run(command, "--list").split()
    return "groups of both protocols listed, described, reset, deleted"


def transactions(trial: Trial) -> str:
    """TransactionsCommand finds an open transaction, and aborts it in its partition."""
    tools, topic = trial.tools, trial.new_topic("tool-transactions", 1)
    producer = Producer({"bootstrap.servers": trial.servers, "transactional.id": topic})
    producer.init_transactions(REQUEST_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(REQUEST_S) == 0
    listed = tools.run("TransactionsCommand", "list")
    assert re.search(rf"{topic}\s.*Ongoing", listed), listed
    described = tools.run("TransactionsCommand", "describe", "--transactional-id", topic)
    assert f"{topic}-0" in described and "Ongoing" in described, described
    place = ("--topic", topic, "--partition", "0")
    producers = tools.run("TransactionsCommand", "describe-producers", *place)
    assert re.search(r"^\d+\s+\d+\s+-?\d+\s+0\s+\d+\s+0\s*$", producers, re.M), producers
    hanging = tools.run("TransactionsCommand", "find-hanging", *place)
    assert not re.search(rf"^{topic}\s", hanging, re.M), hanging
    tools.run("TransactionsCommand", "abort", *place, "--start-offset", "0")
    producers = tools.run("TransactionsCommand", "describe-producers", *place)
    assert re.search(r"^\d+\s+\d+\s+-?\d+\s+0\s+\d+\s+None\s*$", producers, re.M), producers
    assert trial.read(topic) == []
    return "an open transaction listed, described, aborted"


def coordinator_topics(trial: Trial) -> str:
    """ConsoleConsumer reads both coordinator topics by Kafka's formatters."""
    tools, topic = trial.tools, trial.new_topic("tool-coordinators", 1)
    trial.write(topic, [b"a", b"b", b"c"])
    groups = {
        protocol: trial.new_name(f"format-{protocol}") for protocol in ("classic", "consumer")
    }
    for protocol, group in groups.items():
        tools.run(
            "consumer.ConsoleConsumer",
            *("--topic", topic, "--group", group, "--max-messages", "3"),
            *("--command-property", f"group.protocol={protocol}"),
            *("--command-property", "auto.offset.reset=earliest"),
        )
    producer = Producer({"bootstrap.servers": trial.servers, "transactional.id": topic})
    producer.init_transactions(REQUEST_S)
    producer.begin_transaction()
    producer.produce(topic, b"d", partition=0)
    producer.commit_transaction(REQUEST_S)

    def formatted(internal: str, formatter: str) -> list[dict[str, Any]]:
        read = tools.run(
            "consumer.ConsoleConsumer",
            *("--topic", internal, "--from-beginning", "--timeout-ms", "3000"),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        )
        # The formatters write one document after the other, without a line end.
        found, decoder, position = [], json.JSONDecoder(), 0
        while position < len(read):
            document, position = decoder.raw_decode(read, position)
            found.append(document)
            position += len(read[position:]) - len(read[position:].lstrip())
        return found

    offsets = formatted("__consumer_offsets", "OffsetsMessageFormatter")
    found = {
        (one["key"]["data"]["group"], one["key"]["data"]["partition"]): one["value"]["data"][
            "offset"
        ]
        for one in offsets
        if one["value"] is not None and one["key"]["data"]["topic"] == topic
    }
    assert found == {(group, 0): 3 for group in groups.values()}, found
    states = [
        one["value"]["data"]
        for one in formatted("__transaction_state", "TransactionLogMessageFormatter")
        if one["key"]["data"]["transactionalId"] == topic
    ]
    assert states, "no state of the transaction"
    kinds = [one["transactionStatus"] for one in states]
    assert kinds[-1] == 4, kinds
    members = formatted("__consumer_offsets", "GroupMetadataMessageFormatter")
    classic = [one for one in members if one["key"]["data"]["group"] == groups["classic"]]
    assert classic, "no metadata of the classic group"
    return f"{len(offsets)} offsets, {len(states)} states of a transaction, {len(members)} groups"
