"""kill -9 under load, again and again on the same data.

Judged: every message whose receipt the official client saw is delivered in the end; what comes more than once was in
flight at a kill; nothing whose acknowledgement had a receipt is ever delivered again.
"""

import argparse
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

import pulsar

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import wire  # noqa: E402
from hulse import Server, until  # noqa: E402

TOPIC = "persistent://public/default/crash"


class Producer(threading.Thread):
    """The official client without a pause; it reconnects and sends again by itself."""

    def __init__(self, url, name, batched):
        super().__init__(daemon=True)
        self.client = pulsar.Client(url, operation_timeout_seconds=60, logger=None)
        self.producer = self.client.create_producer(
            TOPIC, producer_name=name, batching_enabled=batched, batching_max_publish_delay_ms=1,
            block_if_queue_full=True, max_pending_messages=500, send_timeout_millis=0,
        )
        self.name_, self.sent, self.received, self.stopping = name, 0, set(), False
        self.failures = []

    def run(self):
        while not self.stopping:
            number = self.sent
            self.sent += 1
            payload = f"{self.name_}:{number}:".encode().ljust(random.choice((100, 1024, 4000)), b".")
            self.producer.send_async(payload, lambda result, _id, number=number: self.receipt(result, number))
            if number % 100 == 0:
                time.sleep(0.005)

    def receipt(self, result, number):
        if result == pulsar.Result.Ok:
            self.received.add(number)
        else:
            self.failures.append((number, result))

    def finish(self):
        self.stopping = True
        self.join(60)
        self.producer.flush()
        self.client.close()


class Acknowledger(threading.Thread):
    """A shared consumer that acknowledges each entry and waits for the receipts, over every restart."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.durable, self.again, self.stopping, self.request = port, set(), [], False, 10

    def run(self):
        while not self.stopping:
            try:
                self.session()
            except (OSError, AssertionError):
                time.sleep(0.01)

    def session(self):
        connection = wire.Connection(self.port, timeout=2.0)
        try:
            connection.subscribe(TOPIC, "receipts")
            connection.flow(1000)
            asked, used = {}, 0
            while not self.stopping:
                kind, body, _ = connection.read()
                if kind == wire.MESSAGE:
                    at = wire.position(body)
                    if at in self.durable:
                        self.again.append(at)
                    self.request += 1
                    asked[self.request] = at
                    connection.ack(at, self.request)
                    used += 1
                    if used == 200:
                        connection.flow(2000)
                        used = 0
                elif kind == wire.ACK_RESPONSE and 4 not in body:
                    self.durable.add(asked.pop(body[6]))
        finally:
            connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--settings", nargs="*", default=[], help="KEY=VALUE")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    random.seed(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hulse-crash-"))
    # Small ledgers, so that rollover and trimming happen between the kills.
    settings = {"managedLedgerMaxEntriesPerLedger": 2000, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    settings.update(pair.split("=", 1) for pair in options.settings)
    server = Server(folder / "data", settings=settings).start()
    print(f"seed {seed}, data in {server.folder}", flush=True)

    client = pulsar.Client(server.url)
    client.subscribe(TOPIC, "audit", initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()
    producers = [Producer(server.url, "single", False), Producer(server.url, "batched", True)]
    acknowledger = Acknowledger(server.port)
    for thread in [*producers, acknowledger]:
        thread.start()

    restarts, before = [], 0
    for kill in range(options.kills):
        time.sleep(random.uniform(0.05, 1.0))
        server.kill9()
        server.start()
        restarts.append(server.ready_seconds)
        # A kill proves nothing while nothing got through since the last one.
        until(lambda: sum(len(p.received) for p in producers) > before, 60, "a receipt after the restart")
        before = sum(len(p.received) for p in producers)
        if (kill + 1) % 10 == 0:
            print(f"{kill + 1} kills, {before} receipts, {len(acknowledger.durable)} durable acks", flush=True)
    for producer in producers:
        producer.finish()
    time.sleep(1.0)
    acknowledger.stopping = True
    acknowledger.join(10)

    client = pulsar.Client(server.url)
    consumer = client.subscribe(TOPIC, "audit", initial_position=pulsar.InitialPosition.Earliest)
    seen = {producer.name_: [] for producer in producers}
    while True:
        try:
            message = consumer.receive(2000)
        except pulsar.Timeout:
            break
        name, number = message.data().split(b":")[:2]
        seen[name.decode()].append(int(number))
        consumer.acknowledge(message)
    client.close()
    server.stop()

    wrong = []
    for producer in producers:
        numbers = seen[producer.name_]
        lost = producer.received - set(numbers)
        first = list(dict.fromkeys(numbers))
        repeated = len(numbers) - len(first)
        print(f"{producer.name_}: {producer.sent} sent, {len(producer.received)} receipts, {repeated} repeated")
        if lost:
            wrong.append(f"{producer.name_}: {len(lost)} with a receipt are lost, first {sorted(lost)[:5]}")
        if first != sorted(first):
            wrong.append(f"{producer.name_}: out of order")
        if repeated > 500 * options.kills:
            wrong.append(f"{producer.name_}: more repeated than can have been in flight")
        if producer.failures:
            wrong.append(f"{producer.name_}: failed sends {producer.failures[:3]}")
    if acknowledger.again:
        wrong.append(f"{len(acknowledger.again)} came again after a receipt, first {acknowledger.again[:5]}")
    if not acknowledger.durable:
        wrong.append("no acknowledgement ever had a receipt")
    restarts.sort()
    print(
        f"{options.kills} kills, {len(acknowledger.durable)} acknowledgements with a receipt, ready after "
        f"{restarts[len(restarts) // 2] * 1000:.0f} ms (median), {restarts[-1] * 1000:.0f} ms (longest)"
    )
    panics = [line for line in server.log_text().splitlines() if "panicked" in line or '"level":"ERROR"' in line]
    wrong.extend(panics[:5])
    if wrong:
        print("FAILED (data kept): " + "; ".join(wrong))
        return 1
    shutil.rmtree(folder)
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
