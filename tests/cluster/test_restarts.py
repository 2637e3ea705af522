from raftlog.cluster.restarts import DELAY_MAX_S, FAILING_DELAY_S, Restart, RestartPolicy


def deaths(policy: RestartPolicy, times: list[float], lived_s: float = 1.0) -> list[Restart]:
    return [policy.died(now_s, lived_s) for now_s in times]


def test_delay_doubles_from_death_to_death() -> None:
    restarts = deaths(RestartPolicy(), [0, 20, 40, 61])
    assert [restart.delay_s for restart in restarts] == [0.1, 0.2, 0.4, 0.8]
    assert not any(restart.is_failing for restart in restarts)


def test_five_deaths_within_a_minute_are_a_failing_node_tried_slowly() -> None:
    restarts = deaths(RestartPolicy(), [0, 10, 20, 30, 60])
    assert [restart.is_failing for restart in restarts] == [False] * 4 + [True]
    assert restarts[-1].delay_s == FAILING_DELAY_S


def test_five_deaths_in_more_than_a_minute_are_not() -> None:
    assert not deaths(RestartPolicy(), [0, 10, 20, 30, 60.5])[-1].is_failing


def test_delay_is_bounded_however_many_deaths() -> None:
    policy = RestartPolicy()
    restarts = deaths(policy, [20.0 * number for number in range(2_000)], lived_s=19)
    assert restarts[-1] == Restart(DELAY_MAX_S, is_failing=False)


def test_failing_node_stays_so_until_it_has_lived_long() -> None:
    policy = RestartPolicy()
    deaths(policy, [0, 1, 2, 3, 4])
    assert policy.died(34.5, 0.5).is_failing
    assert policy.died(65, 0.5) == Restart(FAILING_DELAY_S, is_failing=True)
    assert policy.died(1_000, 900) == Restart(0.1, is_failing=False)


def test_node_that_cannot_live_is_failing_at_its_first_death() -> None:
    assert RestartPolicy().died(0, 1, is_hopeless=True) == Restart(30.0, is_failing=True)
