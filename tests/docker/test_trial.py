"""The pure parts of scripts/trial-docker: probes, restarts, pip's settings; and its refusal."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.containers.compose import HealthCheck
from tests.containers.health import RESTART_DELAY_S_MAX, STABLE_S, Health, Restarts
from tests.containers.images import pip_configuration
from tests.language import ROOT

CHECK = HealthCheck(("true",), interval_s=5, timeout_s=5, retries=3, start_period_s=60)


def test_container_is_healthy_after_its_first_good_probe() -> None:
    health = Health(CHECK)
    assert health.status == "starting"
    health.record(succeeded=True, age_s=5)
    assert health.status == "healthy"


def test_failures_of_the_start_period_do_not_count() -> None:
    health = Health(CHECK)
    for age in range(5, 60, 5):
        health.record(succeeded=False, age_s=age)
    assert (health.status, health.failures) == ("starting", 0)
    for age in (60, 65, 70):
        assert health.status == "starting"
        health.record(succeeded=False, age_s=age)
    assert health.status == "unhealthy"


def test_healthy_container_becomes_unhealthy_after_failures_in_sequence() -> None:
    health = Health(CHECK)
    results = [True, False, False, True, False, False, False]
    seen = []
    for succeeded in results:
        health.record(succeeded=succeeded, age_s=10)
        seen.append(health.status)
    assert seen == ["healthy"] * 6 + ["unhealthy"]


def test_delays_between_restarts_double_up_to_a_bound() -> None:
    restarts = Restarts("unless-stopped")
    delays = [restarts.delay_s(0.1) for _ in range(12)]
    assert delays[:3] == [0.1, 0.2, 0.4]
    assert delays[-1] == RESTART_DELAY_S_MAX
    assert restarts.delay_s(STABLE_S) == 0.1


def test_policy_no_means_no_restart() -> None:
    assert Restarts("no").delay_s(100.0) is None


def test_the_build_takes_over_the_index_and_the_certificates_of_pip() -> None:
    listed = (
        ":env:.index-url='https://index.example/simple'\n"
        "global.cert='/etc/ssl/certs/own.pem'\n"
        "global.index-url='https://other.example/simple'\n"
        "global.find-links='/wheels'\n"
    )
    config, certificates = pip_configuration(listed)
    assert config.splitlines() == [
        "[global]",
        "index-url = https://index.example/simple",
        "cert = /run/secrets/pip_cert",
    ]
    assert certificates == Path("/etc/ssl/certs/own.pem")
    assert pip_configuration("") == ("[global]\n", None)


def test_trial_without_root_says_so() -> None:
    if os.geteuid() != 0:
        command = ["scripts/trial-docker"]
    else:
        command = ["setpriv", "--reuid=65534", "--clear-groups", "bash", "scripts/trial-docker"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 126 or "Permission denied" in done.stderr:
        pytest.skip("the checkout is not readable by another user")
    assert done.returncode == 2
    assert "needs root" in done.stderr
