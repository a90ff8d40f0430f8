"""One million messages of 1 KB through each of: exclusive and shared, single and batched. Counts, order, repeats."""

import argparse
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import pulsar

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from hulse import Server  # noqa: E402


def produce(url, topic, name, count, batched):
    client = pulsar.Client(url)
    producer = client.create_producer(
        topic, producer_name=name, batching_enabled=batched, batching_max_publish_delay_ms=1,
        block_if_queue_full=True, max_pending_messages=5000,
    )
    padding = b"." * 1024
    failures = []
    for number in range(count):
        head = b"%s:%d:" % (name.encode(), number)
        producer.send_async(head + padding[len(head) :], lambda result, _: result == pulsar.Result.Ok or failures.append(result))
    producer.flush()
    client.close()
    assert not failures, failures[:3]


def run(server, kind, batched, count):
    topic = f"million-{kind}-{'batched' if batched else 'single'}"
    client = pulsar.Client(server.url)
    shared = kind == "shared"
    consumers = [
        client.subscribe(topic, "sub", pulsar.ConsumerType.Shared if shared else pulsar.ConsumerType.Exclusive)
        for _ in range(2 if shared else 1)
    ]
    lists = [{"a": [], "b": []} for _ in consumers]
    repeats = [0] * len(consumers)
    started = time.monotonic()
    total = [0]
    lock = threading.Lock()

    def consume(index):
        consumer, mine = consumers[index], lists[index]
        while total[0] < count:
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            name, number = message.data()[:32].split(b":")[:2]
            mine[name.decode()].append(int(number))
            repeats[index] += message.redelivery_count() > 0
            consumer.acknowledge(message)
            with lock:
                total[0] += 1

    threads = [threading.Thread(target=consume, args=(index,)) for index in range(len(consumers))]
    threads += [threading.Thread(target=produce, args=(server.url, topic, name, count // 2, batched)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    extra = 0
    for consumer in consumers:
        try:
            consumer.receive(300)
            extra += 1
        except pulsar.Timeout:
            pass
    for name in "ab":
        for mine in lists:
            assert mine[name] == sorted(mine[name]), f"{topic}: order of producer {name}"
        assert sorted(number for mine in lists for number in mine[name]) == list(range(count // 2)), topic
    assert extra == 0 and sum(repeats) == 0, f"{topic}: {extra} extra, {sum(repeats)} redelivered"
    client.close()
    print(f"{topic}: {count} exactly once, in order; {count / took:.0f} msg/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hulse-million-"))
    server = Server(folder / "data").start()
    for kind in ("exclusive", "shared"):
        for batched in (False, True):
            run(server, kind, batched, options.messages)
    server.stop()
    assert server.unannounced() == [], server.unannounced()[:5]
    shutil.rmtree(folder)
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main()
