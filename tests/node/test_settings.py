from __future__ import annotations

from typing import Any

import pytest

from raftlog.node.settings import (
    NOT_SHOWN,
    KafkaAddress,
    NodeSettings,
    shown,
    split_address,
)
from raftlog.peer.dial import join_address

THREE = "1@a.lan:8082,2@b.lan:8082,3@c.lan:8082"
SECRET = "correct horse battery staple"


def settings(**values: Any) -> NodeSettings:
    return NodeSettings(data_dir="d", **values)


def test_advertised_address() -> None:
    assert settings(listen="10.0.0.1:80").advertised_address(80) == ("10.0.0.1", 80)
    assert settings(listen="10.0.0.1:0").advertised_address(4321) == ("10.0.0.1", 4321)
    assert settings(listen="[::1]:80").advertised_address(80) == ("::1", 80)
    host, port = settings(listen="0.0.0.0:80").advertised_address(80)
    assert (host not in ("", "0.0.0.0"), port) == (True, 80)
    told = settings(listen="0.0.0.0:80", advertised="me.lan:81")
    assert told.advertised_address(80) == ("me.lan", 81)


def test_voters_say_where_a_node_is_unless_it_says_so_itself() -> None:
    of_list = settings(node_id=2, listen="0.0.0.0:8082", voters=THREE)
    assert of_list.advertised_address(8082) == ("b.lan", 8082)
    itself = settings(node_id=2, voters=THREE, advertised="x:1")
    assert itself.advertised_address(8082) == ("x", 1)


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, None),
        ({"kafka_listen": "none"}, None),
        ({"kafka_listen": "10.0.0.1:0"}, KafkaAddress("10.0.0.1", 4321)),
        ({"kafka_listen": "[::1]:0"}, KafkaAddress("::1", 4321)),
        # All addresses: the name by which others know this machine.
        ({"kafka_listen": "0.0.0.0:0", "listen": "10.0.0.1:80"}, KafkaAddress("10.0.0.1", 4321)),
        ({"kafka_listen": "[::]:0", "voters": THREE}, KafkaAddress("a.lan", 4321)),
        (
            {"kafka_listen": "0.0.0.0:0", "kafka_advertise": "me.lan:93"},
            KafkaAddress("me.lan", 93),
        ),
        (
            {"kafka_listen": "0.0.0.0:0", "kafka_advertise": "gateway=lb.lan:9092"},
            KafkaAddress("lb.lan", 9092, is_gateway=True),
        ),
    ],
)
def test_kafka_clients_learn_the_advertised_address_or_the_one_listened_on(
    values: dict[str, Any], address: KafkaAddress | None
) -> None:
    given = settings(**values)
    given.check()
    assert given.kafka_advertised(4321) == address


def test_kafka_listener_on_all_addresses_is_not_announced_at_loopback() -> None:
    found = settings(kafka_listen="0.0.0.0:9092").kafka_advertised(9092)
    assert found is not None
    assert found.host not in ("", "0.0.0.0", "127.0.0.1")


def test_nodes_to_join_are_read_as_people_write_them() -> None:
    found = settings(join=" http://a:1/, b:2,a:1,[::1]:3 ").join_addresses()
    assert found == ("a:1", "b:2", "[::1]:3")
    assert settings().join_addresses() == ()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"join": ""}, "names 0 nodes"),
        ({"join": "a"}, "'a' is not an address"),
        ({"join": "a:0"}, "'a:0' has no port"),
        ({"join": ",".join(f"h{n}:1" for n in range(33))}, "names 33 nodes"),
        ({"voters": "1@a:1,1@b:1"}, "node 1 is named twice"),
        ({"voters": "a:1"}, "is not a voter"),
        ({"voters": THREE, "join": "a:1"}, "give one of them"),
        ({"cluster_secret": SECRET, "cluster_secret_file": "f"}, "given twice"),
        ({"listen": "nowhere"}, "'nowhere' is not an address"),
        ({"advertised": "x:99999"}, "'x:99999' is not an address"),
        ({"kafka_listen": "9092"}, "--kafka-listen: '9092' is not an address"),
        ({"kafka_listen": "gateway=a:1:"}, "--kafka-listen: .* is not an address"),
        ({"kafka_advertise": "a:1"}, "there is none: give --kafka-listen HOST:PORT"),
        (
            {"kafka_listen": "none", "kafka_advertise": "a:1"},
            "there is none: give --kafka-listen HOST:PORT",
        ),
        (
            {"kafka_listen": "a:1", "kafka_advertise": "gateway=lb"},
            "--kafka-advertise: 'lb' is not an address",
        ),
        ({"kafka_listen": "a:1", "kafka_advertise": "a:0"}, "'a:0' has no port"),
        ({"listen": "a:1", "kafka_listen": "a:1"}, "--kafka-listen and --listen name the same"),
        (
            {"listen": "a:1", "kafka_listen": "a:2", "health_port": 2},
            "--kafka-listen and --health-port name the same",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_in_clear_words(
    values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match="^.*" + complaint) as refused:
        settings(**values).check()
    assert SECRET not in str(refused.value)


def test_secret_is_shown_nowhere() -> None:
    given = settings(cluster_secret=SECRET, cluster_secret_file="/run/secret")
    assert SECRET not in f"{given} {given!r} {[given]}"
    assert shown(given)["cluster_secret"] == NOT_SHOWN
    assert shown(given)["cluster_secret_file"] == "/run/secret"
    assert shown(settings())["cluster_secret"] is None


@pytest.mark.parametrize(("host", "port"), [("a", 1), ("::1", 65535), ("10.0.0.1", 0)])
def test_addresses_are_joined_as_they_are_split(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)
