"""Publishing and consuming with the official client: counts, order, restarts."""

import pulsar
import pytest

from exchange import exactly_once, produce

COUNT = 20_000
SHARED, EXCLUSIVE = pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED], ids=["exclusive", "shared"])
def test_every_message_once_and_in_order(server, kind, batched):
    consumers = 1 if kind == EXCLUSIVE else 3
    exactly_once(server.url, "orders", kind, consumers, batched, COUNT, deadline=120)


def test_a_clean_restart_keeps_messages_and_acknowledgements(server):
    client = pulsar.Client(server.url)
    consumer = client.subscribe("kept", "sub")
    produce(client, "kept", "p", 100, batched=False)
    for _ in range(40):
        consumer.acknowledge(consumer.receive(10_000))
    client.close()
    server.stop()
    server.start()
    client = pulsar.Client(server.url)
    consumer = client.subscribe("kept", "sub")
    indexes = [int(consumer.receive(10_000).data().split(b":")[1]) for _ in range(60)]
    assert indexes == list(range(40, 100))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()


def test_a_shared_consumer_that_leaves_gives_its_messages_back(server):
    client = pulsar.Client(server.url)
    first = client.subscribe("work", "workers", consumer_type=SHARED)
    produce(client, "work", "p", 50, batched=False)
    for _ in range(50):
        first.receive(10_000)
    second = client.subscribe("work", "workers", consumer_type=SHARED)
    first.close()
    again = [second.receive(10_000) for _ in range(50)]
    assert sorted(int(message.data().split(b":")[1]) for message in again) == list(range(50))
    assert all(message.redelivery_count() >= 1 for message in again)
    client.close()


def test_a_negative_acknowledgement_redelivers(server):
    client = pulsar.Client(server.url)
    consumer = client.subscribe("nack", "sub", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100)
    produce(client, "nack", "p", 1, batched=False)
    consumer.negative_acknowledge(consumer.receive(10_000))
    message = consumer.receive(10_000)
    assert message.redelivery_count() == 1
    consumer.acknowledge(message)
    client.close()


def test_cumulative_acknowledgement_and_unsubscribe(server):
    client = pulsar.Client(server.url)
    consumer = client.subscribe("cumulative", "sub")
    produce(client, "cumulative", "p", 10, batched=False)
    messages = [consumer.receive(10_000) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    consumer = client.subscribe("cumulative", "sub")
    assert int(consumer.receive(10_000).data().split(b":")[1]) == 7
    consumer.unsubscribe()
    assert "sub" not in server.get("/admin/v2/persistent/public/default/cumulative/stats")["subscriptions"]
    client.close()


def test_part_of_a_batch_stays_acknowledged(configured):
    server = configured(acknowledgmentAtBatchIndexLevelEnabled="true")
    client = pulsar.Client(server.url)
    options = dict(consumer_type=SHARED, batch_index_ack_enabled=True)
    consumer = client.subscribe("parts", "sub", **options)
    producer = client.create_producer("parts", batching_enabled=True, batching_max_publish_delay_ms=1000)
    for index in range(10):
        producer.send_async(str(index).encode(), lambda *_: None)
    producer.flush()
    for _ in range(10):
        message = consumer.receive(10_000)
        if int(message.data()) % 2 == 0:
            consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe("parts", "sub", **options)
    left = [int(consumer.receive(10_000).data()) for _ in range(5)]
    assert sorted(left) == [1, 3, 5, 7, 9]
    client.close()


def test_large_messages_pass_and_too_large_ones_are_refused(server):
    client = pulsar.Client(server.url)
    consumer = client.subscribe("large", "sub")
    producer = client.create_producer("large")
    body = bytes(range(256)) * (5 * 1024 * 1024 // 256 - 8)
    producer.send(body)
    assert consumer.receive(10_000).data() == body
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (6 * 1024 * 1024))
    producer.send(b"after")
    assert consumer.receive(10_000).data() == b"after"
    client.close()


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_payloads_pass_through(server, codec):
    client = pulsar.Client(server.url)
    consumer = client.subscribe("zipped", "sub")
    producer = client.create_producer("zipped", compression_type=getattr(pulsar.CompressionType, codec))
    producer.send(b"abc" * 10_000, properties={"k": "v"}, partition_key="key")
    message = consumer.receive(10_000)
    assert (message.data(), message.properties(), message.partition_key()) == (b"abc" * 10_000, {"k": "v"}, "key")
    client.close()


def test_a_commit_before_each_receipt_and_few_under_load(server):
    """Syncs are counted: one at a time costs one each, a flood shares them."""
    client = pulsar.Client(server.url)
    producer = client.create_producer("synced", block_if_queue_full=True, max_pending_messages=2000)
    producer.send(b"first")
    before = server.metric("hulse_log_commits_total")
    for _ in range(50):
        producer.send(b"x")
    alone = server.metric("hulse_log_commits_total") - before
    assert alone >= 50
    before = server.metric("hulse_log_commits_total")
    for _ in range(20_000):
        producer.send_async(b"x" * 1024, lambda *_: None)
    producer.flush()
    together = server.metric("hulse_log_commits_total") - before
    print(f"commits: {alone:.0f} for 50 sends one by one, {together:.0f} for 20000 at once")
    assert together < 20_000 / 4
    assert server.metric("hulse_log_syncs_total") >= server.metric("hulse_log_commits_total")
    client.close()
