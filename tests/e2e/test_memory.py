"""`--memory-limit` holds within 10 % while clients do what makes servers grow, and nobody who reads waits for those who do not."""

import socket
import threading
import time

import pulsar
import pytest

import wire
from hulse import until

MIB = 1 << 20


class Memory:
    """Resident memory of the server, from now on: the kernel's own high-water mark, and which phase reached it."""

    def __init__(self, server, limit_mb):
        self.server, self.limit_mb = server, limit_mb
        self.peaks, self.started = {}, time.monotonic()

    def status(self, key):
        with open(f"/proc/{self.server.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key + ":"))

    def phase(self, name):
        """Ends a phase: notes its peak and starts the next one's."""
        self.peaks[name] = (round(self.status("VmHWM"), 1), round(self.status("VmRSS"), 1))
        with open(f"/proc/{self.server.process.pid}/clear_refs", "w") as mark:
            mark.write("5")
        print(f"{time.monotonic() - self.started:.1f} s: {name}: peak {self.peaks[name][0]} MB, now {self.peaks[name][1]} MB, limit {self.limit_mb} MB")

    def check(self):
        assert all(peak <= self.limit_mb * 1.10 for peak, _ in self.peaks.values()), self.peaks


class Stalled:
    """A consumer that asks for everything and then never reads; a small window keeps the kernel from reading for it."""

    def __init__(self, server, topic, subscription, earliest=False):
        before = socket.socket
        small = lambda *args, **kwargs: _with_small_window(before(*args, **kwargs))  # noqa: E731
        socket.socket = small
        try:
            self.connection = wire.Connection(server.port)
        finally:
            socket.socket = before
        self.connection.subscribe(f"persistent://public/default/{topic}", subscription, shared=False, earliest=earliest)
        self.connection.flow(1_000_000)


def _with_small_window(made):
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    return made


class Healthy:
    """Receives and acknowledges, and remembers when the last message came."""

    def __init__(self, url, topic, subscription="healthy", queue=100, **options):
        self.client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
        self.consumer = self.client.subscribe(topic, subscription, receiver_queue_size=queue, **options)
        self.count, self.longest_gap, self.last = 0, 0.0, time.monotonic()
        self.going = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.going:
            try:
                message = self.consumer.receive(200)
            except pulsar.Timeout:
                continue
            now = time.monotonic()
            self.longest_gap, self.last = max(self.longest_gap, now - self.last), now
            self.count += 1
            self.consumer.acknowledge(message)

    def stop(self):
        self.going = False
        self.thread.join()
        self.client.close()


def send(url, topic, count, size, pending=500):
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=pending, send_timeout_millis=0
    )
    failures, payload = [], b"x" * size
    for _ in range(count):
        producer.send_async(payload, lambda result, _: result == pulsar.Result.Ok or failures.append(result))
    producer.flush()
    client.close()
    assert not failures, failures[:3]


def together(*calls):
    """Runs the calls beside each other; the first failure is the caller's."""
    failures = []

    def run(call, arguments):
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call, arguments)) for call, *arguments in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def thousand_producers(server, topics, rounds):
    """1000 producers of five clients, one or ten on each topic, all sending at once."""
    clients = [
        pulsar.Client(server.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")) for _ in range(5)
    ]

    def one(client, numbers):
        producers = [client.create_producer(f"many-{number % topics}", send_timeout_millis=0) for number in numbers]
        failures = []
        for _ in range(rounds):
            for producer in producers:
                producer.send_async(b"y" * 1024, lambda result, _: result == pulsar.Result.Ok or failures.append(result))
        for producer in producers:
            producer.flush()
        assert not failures, failures[:3]

    together(*[(one, client, range(200 * index, 200 * index + 200)) for index, client in enumerate(clients)])
    return clients


@pytest.mark.parametrize("limit_mb", [128, 512])
def test_the_limit_holds(configured, limit_mb):
    server = configured("--memory-limit", f"{limit_mb}MB")
    server.announce("the peer has stopped reading")
    memory = Memory(server, limit_mb)
    memory.phase("idle")
    assert memory.peaks["idle"][0] < 30

    clients = thousand_producers(server, topics=1000, rounds=20)
    memory.phase("1000 producers")

    # Small messages: twenty do not read them, one does. Between them lie large ones of other topics, so that each small
    # one that waits is a slice of another block.
    stalled = [Stalled(server, "small", f"stalled-{number}") for number in range(20)]
    healthy = Healthy(server.url, "small", queue=1000)
    mib = 3 * limit_mb // 4
    together((send, server.url, "small", mib * 1024, 1000), (send, server.url, "other", mib // 4, MIB, 5))
    until(lambda: healthy.count == mib * 1024, what="every small message")
    memory.phase("20 stalled consumers of small messages")
    assert healthy.longest_gap < 10

    # Large messages: again some do not read.
    stalled += [Stalled(server, "large", f"stalled-{number}") for number in range(6)]
    large = Healthy(server.url, "large", queue=2)
    together(*[(send, server.url, "large", limit_mb // 16, 5 * MIB - 1024, 4) for _ in range(4)])
    until(lambda: large.count == 4 * (limit_mb // 16), 60, what="every large message")
    memory.phase("6 stalled consumers of 5 MB messages")

    # A backlog from the disk: of both kinds, by those who read it and those who do not.
    stalled += [Stalled(server, topic, f"late-{n}", earliest=True) for n in range(4) for topic in ("small", "large")]
    options = {"initial_position": pulsar.InitialPosition.Earliest}
    backlogs = [Healthy(server.url, "small", "late", 1000, **options), Healthy(server.url, "large", "late", 2, **options)]
    until(lambda: backlogs[0].count >= mib * 1024 and backlogs[1].count >= 4 * (limit_mb // 16), 60, "the backlog")
    memory.phase("a backlog from the disk")

    for client in clients:
        client.close()
    for consumer in [healthy, large, *backlogs]:
        consumer.stop()
    for consumer in stalled:
        consumer.connection.close()
    memory.phase("after all")
    memory.check()
