from __future__ import annotations

from raftlog.broker.metrics import OTHER_TOPICS, TopicMetrics


def test_deleted_topic_gives_its_label_to_another_and_loses_no_count() -> None:
    metrics = TopicMetrics(labels_max=2)
    for name in ("a", "b", "c", "d"):
        metrics.topic(name).messages_in += 1
    metrics.keep_topics({"b", "c", "d"})
    metrics.topic("c").messages_in += 10
    assert [(label, counters.messages_in) for label, counters in metrics.rows()] == [
        ("b", 1),
        ("c", 10),
        (OTHER_TOPICS, 3),
    ]
