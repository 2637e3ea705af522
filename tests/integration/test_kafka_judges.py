"""Programs that others wrote, against a cluster of real nodes; `scripts/trial-kafka` does more.

Java's programs run where Java is, and the jars are in the cache (tests/judges/jars.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.judges.catalog import JUDGES, Judge
from tests.judges.jars import UnavailableError
from tests.judges.trial import BRIEF, Trial, trial

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python's


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    with trial(tmp_path_factory.mktemp("judges"), BRIEF) as running:
        yield running


@pytest.mark.full  # programs that others wrote
@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.name)
def test_judge_finds_nothing_wrong(cluster: Trial, judge: Judge) -> None:
    try:
        judge.run(cluster)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    finally:
        cluster.cluster.heal()
    cluster.check_nodes()
