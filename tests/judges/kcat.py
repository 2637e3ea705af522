"""kcat, as Debian ships it: metadata, keys, headers, groups, offsets by time."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.judges import jars
from tests.judges.programs import DEADLINE_S
from tests.judges.trial import Trial, check_values

SESSION_TIMEOUT_MS = 6_000


def _kcat(trial: Trial, *arguments: str, stdin: str = "") -> str:
    kcat = jars.program("kcat", "install it (Debian: apt-get install kcat)")
    ended = subprocess.run(
        [kcat, "-b", trial.servers, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, f"kcat {arguments}: {ended}"
    return ended.stdout


def kcat_pipes(trial: Trial) -> str:
    """kcat writes keys and headers, reads them back by offset and by time, and as a group."""
    topic = trial.new_topic("kcat")
    metadata: dict[str, Any] = json.loads(_kcat(trial, "-L", "-J", "-t", topic))
    assert len(metadata["brokers"]) == len(trial.cluster.nodes), metadata
    [described] = metadata["topics"]
    assert len(described["partitions"]) == 3, described
    count = trial.effort.records
    lines = "".join(f"k{number}\tv{number}\n" for number in range(count))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        flags = ("-z", codec, "-X", "enable.idempotence=true", "-H", f"codec={codec}")
        _kcat(trial, "-P", "-t", topic, "-K", "\t", *flags, stdin=lines)
    values = [b"v%d" % number for number in range(count)] * 5
    check_values(values, trial.read(topic))

    read = _kcat(trial, "-C", "-t", topic, "-e", "-q", "-f", "%h %k %s\n").splitlines()
    wanted = sorted(
        f"codec={codec} k{number} v{number}"
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        for number in range(count)
    )
    assert sorted(read) == wanted, f"{len(read)} of {len(wanted)} lines: {read[:3]}"
    last = _kcat(trial, "-C", "-t", topic, "-p", "0", "-o", "-1", "-c", "1", "-f", "%o %T").split()
    found = _kcat(trial, "-Q", "-t", f"{topic}:0:{last[1]}").split()
    assert int(found[-1]) <= int(last[0]), (found, last)
    assert _kcat(trial, "-C", "-t", topic, "-p", "0", "-o", f"s@{last[1]}", "-e", "-q")

    group = trial.new_name("kcat")
    reset = ("-X", "auto.offset.reset=earliest", "-X", f"session.timeout.ms={SESSION_TIMEOUT_MS}")
    by_group = _kcat(trial, "-G", group, "-e", "-q", "-f", "%s\n", *reset, topic).splitlines()
    assert len(by_group) == len(values), f"{len(by_group)} of {len(values)}"
    assert _kcat(trial, "-G", group, "-e", "-q", *reset, topic) == "", "offsets were not committed"
    return f"{len(values)} records in five codecs, read by offset, time and group"
