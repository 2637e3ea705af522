"""The fleet's file: defaults, paths, and what is refused with which words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.fleet.errors import SpecError
from raftlog.fleet.spec import FleetSpec, host_name, load, parse, settings_text

BASE = Path("/srv/fleet")
HOME = '[fleet]\nhome = "home"\n[[cluster]]\nname = "home"\ndriver = "local"\nbase_port = 7000\n'


def cluster(text: str) -> Any:
    return parse(f"[[cluster]]\n{text}", BASE).cluster[0]


def test_cluster_of_one_log_has_its_name_and_its_topic() -> None:
    spec = cluster(
        'log = "orders"\ndriver = "local"\nnodes = 5\npartitions = 4\n'
        'config = { "min.insync.replicas" = 2, "retention.ms" = "1000" }'
    )
    assert (spec.name, spec.size, spec.voter_count) == ("orders", 5, 3)
    assert spec.dir == "/srv/fleet/fleet/orders"
    (topic,) = spec.topics(is_home=False)
    assert (topic.name, topic.partitions, topic.replication_factor) == ("orders", 4, 3)
    assert topic.config == {"min.insync.replicas": "2", "retention.ms": "1000"}


def test_small_cluster_has_as_many_replicas_and_voters_as_nodes() -> None:
    spec = cluster('log = "a"\ndriver = "local"\nnodes = 2')
    assert spec.topics(is_home=False)[0].replication_factor == 2
    assert spec.voter_count == 2
    assert cluster('log = "a"\ndriver = "local"\nnodes = 7\nvoters = 5').voter_count == 5


def test_home_comes_first_and_has_the_catalog() -> None:
    fleet = parse(
        '[fleet]\nhome = "home"\n[[cluster]]\nlog = "a"\ndriver = "local"\n'
        '[[cluster]]\nname = "home"\ndriver = "local"\nbase_port = 7000\n',
        BASE,
    )
    assert [spec.name for spec in fleet.in_order] == ["home", "a"]
    assert fleet.home is not None
    (catalog,) = fleet.home.topics(is_home=True)
    assert (catalog.name, catalog.config) == ("raftlog.catalog", {"cleanup.policy": "compact"})


def test_hosts_are_words_or_tables() -> None:
    spec = cluster(
        'name = "billing"\ndriver = "ssh"\nrelease = "wheels"\n'
        'hosts = ["h1", "root@h2:2222", { address = "[fd00::1]:22", rack = "b" }, '
        '{ address = "admin@203.0.113.7", host = "10.0.0.7" }]'
    )
    names = [machine.name for machine in spec.machines]
    assert names == ["h1", "h2", "fd00::1", "10.0.0.7"]
    assert spec.machines[2].rack == "b"
    assert spec.release == "/srv/fleet/wheels"


@pytest.mark.parametrize(
    ("address", "name"),
    [("h1", "h1"), ("u@h1", "h1"), ("u@h1:22", "h1"), ("10.0.0.1:22", "10.0.0.1"),
     ("fd00::1", "fd00::1"), ("u@[fd00::1]:22", "fd00::1")],
)  # fmt: skip
def test_name_of_a_host_is_its_address_without_user_and_port(address: str, name: str) -> None:
    assert host_name(address) == name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('driver = "local"', "has no name"),
        ('name = "A b"\ndriver = "local"', "lower case"),
        ('name = "a"\ndriver = "cloud"', "driver"),
        ('name = "a"\ndriver = "local"\nhosts = ["h1"]', "hosts is not for driver local"),
        ('name = "a"\ndriver = "ssh"\nhosts = ["h1"]\nnodes = 3', "nodes is not for driver ssh"),
        ('name = "a"\ndriver = "ssh"', "`hosts` names its machines"),
        ('name = "a"\ndriver = "ssh"\nhosts = ["u@h1", "h1:22"]', "h1 is named more than once"),
        ('name = "a"\ndriver = "local"\nnodez = 3', "nodez"),
        ('name = "a"\ndriver = "local"\nnodes = 0', "nodes"),
        ('name = "a"\ndriver = "local"\nvoters = 2', "voters"),
        ('log = "a"\ndriver = "local"\nnodes = 2\nreplication_factor = 3', "needs more than 2"),
        ('name = "a"\ndriver = "local"\npartitions = 3', "`log`, which is missing"),
        ('name = "a"\nlog = "a"\nlogs = ["b"]\ndriver = "local"', "exactly one log"),
        ('name = "a"\nlogs = ["b", "b"]\ndriver = "local"', "twice"),
        ('name = "a"\nlog = "__consumer_offsets"\ndriver = "local"', "no name for a log"),
        ('name = "a"\ndriver = "local"\nsettings = { node_id = 3 }', "node_id"),
        ('name = "a"\ndriver = "local"\nsettings = { kafka_listen = "h:1" }', "kafka_listen"),
        ('log = "a"\ndriver = "local"\nsettings = { auto_create_topics = true }', "create topics"),
        ('name = "a"\ndriver = "local"\nsettings = { day = 2026-01-01 }', "`settings` takes"),
        (
            'name = "a"\ndriver = "ssh"\nhosts = ["h1"]\nversion = "1"\nrelease = "w"',
            "leave out `version`",
        ),
        ("driver = ", "not TOML"),
    ],
)
def test_wrong_cluster_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        cluster(text)


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ('name = "home"\ndriver = "local"\nbase_port = 7100', "name home is used by"),
        ('name = "b"\ndriver = "local"\nbase_port = 7002', "port 7002 is used by"),
        ('name = "b"\ndriver = "local"\nbase_port = 7100\ndir = "fleet/home"', "dir "),
    ],
)
def test_clusters_must_not_share_what_is_one_clusters(second: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        parse(f"{HOME}[[cluster]]\n{second}", BASE)


def test_clusters_on_one_host_have_one_release_and_ports_of_their_own() -> None:
    def spec(name: str, version: str, port: int) -> str:
        return (
            f'[[cluster]]\nname = "{name}"\ndriver = "ssh"\nhosts = ["h1"]\n'
            f'version = "{version}"\nport = {port}\n'
        )

    with pytest.raises(SpecError, match="address h1:8082 is used by"):
        parse(spec("a", "1", 8082) + spec("b", "1", 8082), BASE)
    with pytest.raises(SpecError, match="host h1 has one release"):
        parse(spec("a", "1", 8082) + spec("b", "2", 9000), BASE)
    assert len(parse(spec("a", "1", 8082) + spec("b", "1", 9000), BASE).cluster) == 2


def test_home_must_be_a_cluster_and_no_cluster_of_one_log() -> None:
    with pytest.raises(SpecError, match="none of the clusters"):
        parse('[fleet]\nhome = "x"\n', BASE)
    with pytest.raises(SpecError, match="keeps the catalog"):
        parse('[fleet]\nhome = "a"\n[[cluster]]\nlog = "a"\ndriver = "local"\n', BASE)


def test_file_is_read_with_its_own_directory_as_base(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[[cluster]]\nname = "a"\ndriver = "local"\ndir = "./here"\n')
    assert load(file).cluster[0].dir == str(tmp_path / "here")
    file.write_text("[[cluster]]\n")
    with pytest.raises(SpecError, match=r"fleet\.toml: .*driver"):
        load(file)
    assert isinstance(parse("", BASE), FleetSpec)


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(min_size=1), inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_settings_are_written_as_the_toml_that_reads_back(settings: dict[str, Any]) -> None:
    def has_inner_table(value: object) -> bool:
        if isinstance(value, list):
            return any(isinstance(one, dict) or has_inner_table(one) for one in value)
        return isinstance(value, dict) and any(map(has_inner_table, value.values()))

    # Tables in lists are refused by the file's check: no setting of a node has one.
    if not has_inner_table(settings):
        assert tomllib.loads(settings_text(settings)) == settings
