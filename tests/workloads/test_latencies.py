from __future__ import annotations

import pytest

from raftlog.workloads.latencies import Latencies


def test_percentiles_are_exact_and_in_milliseconds() -> None:
    found = Latencies.from_seconds([number / 1000 for number in range(1000, 0, -1)])
    assert (found.count, found.max) == (1000, 1000.0)
    assert found.avg == pytest.approx(500.5)
    assert found.percentiles["50pct"] == pytest.approx(501)
    assert found.percentiles["99pct"] == pytest.approx(991)
    assert found.percentiles["99.99pct"] == pytest.approx(1000)


def test_fields_have_the_names_of_openmessaging() -> None:
    fields = Latencies.from_seconds([0.001]).as_fields("publishLatency")
    assert fields["publishLatencyAvg"] == fields["publishLatency99.9pct"] == 1.0
    assert set(fields) == {
        f"publishLatency{name}"
        for name in ("Avg", "Max", "50pct", "75pct", "95pct", "99pct", "99.9pct", "99.99pct")
    }


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Latencies.from_seconds([])
