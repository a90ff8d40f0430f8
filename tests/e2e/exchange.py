"""Producers and consumers of the official client, judged together: counts, order, repeats."""

import threading
import time

import pulsar


def produce(client, topic, name, count, batched, size=1024):
    """Publishes `name:index` padded to `size`; returns when every receipt has come."""
    producer = client.create_producer(
        topic,
        producer_name=name,
        batching_enabled=batched,
        batching_max_publish_delay_ms=1,
        block_if_queue_full=True,
        max_pending_messages=5000,
    )
    failures = []

    def receipt(result, _message_id):
        if result != pulsar.Result.Ok:
            failures.append(result)

    for index in range(count):
        producer.send_async(f"{name}:{index}:".encode().ljust(size, b"."), receipt)
    producer.flush()
    producer.close()
    assert failures == [], failures[:3]


def exactly_once(url, topic, kind, consumers, batched, per_producer, deadline=None):
    """Two producers and some consumers of one subscription, each in a thread of its own. Everything must come once, in the order
    of its producer at each consumer, and nothing more. Returns how long it took, in seconds."""
    client = pulsar.Client(url)
    count = 2 * per_producer
    open_consumers = [client.subscribe(topic, "sub", consumer_type=kind) for _ in range(consumers)]
    lists = [{"a": [], "b": []} for _ in open_consumers]
    redelivered = []
    received, done = [0], threading.Event()
    lock = threading.Lock()

    def consume(consumer, own):
        while not done.is_set():
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            name, index = message.data()[:32].split(b":")[:2]
            own[name.decode()].append(int(index))
            if message.redelivery_count() > 0:
                redelivered.append(message.message_id())
            consumer.acknowledge(message)
            with lock:
                received[0] += 1
                if received[0] >= count:
                    done.set()

    # A client each, so that the producers do not share a connection.
    senders = {name: pulsar.Client(url) for name in "ab"}
    failures = []

    def send(name, sender):
        try:
            produce(sender, topic, name, per_producer, batched)
        except BaseException as error:
            # A thread's exception reaches nobody by itself, and the consumers would wait for ever.
            failures.append(error)
            done.set()

    threads = [threading.Thread(target=consume, args=pair) for pair in zip(open_consumers, lists)]
    threads += [threading.Thread(target=send, args=pair) for pair in senders.items()]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline)
        assert not thread.is_alive(), f"{topic}: not done after {deadline} s"
    took = time.monotonic() - started
    assert failures == [], failures

    for name in "ab":
        for own in lists:
            assert own[name] == sorted(own[name]), f"{topic}: order of producer {name}"
        assert sorted(index for own in lists for index in own[name]) == list(range(per_producer)), topic
    assert redelivered == [], f"{topic}: {len(redelivered)} redelivered"
    for consumer in open_consumers:
        try:
            extra = consumer.receive(300)
        except pulsar.Timeout:
            continue
        raise AssertionError(f"{topic}: {extra.data()[:32]} came although everything had come")
    for each in [client, *senders.values()]:
        each.close()
    return took
