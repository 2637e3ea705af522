"""Errors of requests without a right: Kafka's code names the kind of resource that was refused."""

from __future__ import annotations

from raftlog.broker.authorize import Authorize, Operation, Principal, Resource, ResourceType
from raftlog.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from raftlog.kafka.messages.transactions import DescribeTransactionsRequest, InitProducerIdRequest
from raftlog.record.errors import FORBIDDEN, LogError
from tests.kafka.peers import batch, group_node


def refusing(kind: ResourceType) -> Authorize:
    """Refuses everything on one kind of resource."""

    def authorize(_principal: Principal, _operation: Operation, resource: Resource) -> None:
        if resource.type is kind:
            raise LogError(FORBIDDEN)

    return authorize


async def test_a_refused_transactional_id_is_53() -> None:
    async with (
        group_node(authorize=refusing(ResourceType.TRANSACTIONAL_ID)) as one,
        one.client() as client,
    ):
        rows = tuple(PartitionProduceData(number, batch(b"x")) for number in range(2))
        data = (TopicProduceData("six", None, rows),)
        answer = await client.ask(ProduceRequest("t", -1, 10_000, data), 9)
        codes = [row.error_code for row in answer.responses[0].partition_responses]
        assert codes == [53, 53]
        assert (await client.ask(InitProducerIdRequest("t", 10_000), 4)).error_code == 53
        [described] = (await client.ask(DescribeTransactionsRequest(("t",)), 0)).transaction_states
        assert described.error_code == 53


async def test_a_refused_topic_is_29() -> None:
    async with group_node(authorize=refusing(ResourceType.TOPIC)) as one, one.client() as client:
        data = (TopicProduceData("one", None, (PartitionProduceData(0, batch(b"x")),)),)
        answer = await client.ask(ProduceRequest(None, -1, 10_000, data), 9)
        assert answer.responses[0].partition_responses[0].error_code == 29


async def test_a_producer_id_without_the_right_to_the_cluster_is_31() -> None:
    async with group_node(authorize=refusing(ResourceType.CLUSTER)) as one, one.client() as client:
        assert (await client.ask(InitProducerIdRequest(None, 10_000), 4)).error_code == 31
