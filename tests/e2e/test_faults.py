"""Torn and damaged files, missing and mixed-up folders, hostile peers, and stops at bad moments."""

import contextlib
import glob
import http.client
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pulsar
import pytest

import wire
from hulse import BINARY, Server, free_port, until

TENANT = "/admin/v2/persistent/public/default/"
EARLIEST = pulsar.InitialPosition.Earliest


# --- helpers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path):
    """Makes servers (not started) that are stopped and whose logs are scanned at the end."""
    made = []

    def make(folder=None, *arguments, **settings):
        server = Server(folder or tmp_path / f"data{len(made)}", *arguments, settings=settings)
        made.append(server)
        return server

    yield make
    for server in made:
        if server.process is not None:
            server.stop()
            assert server.unannounced() == []


@contextlib.contextmanager
def connected(server, **options):
    client = pulsar.Client(server.url, operation_timeout_seconds=10, logger=silent(), **options)
    try:
        yield client
    finally:
        client.close()


def silent():
    import logging

    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return logger


def numbered(number, size=200):
    return f"m:{number:06}:".encode().ljust(size, b".")


def publish(client, topic, numbers, size=200):
    """Each message is acknowledged (and so a commit of its own) before the next is sent."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(numbered(number, size)) for number in numbers]
    producer.close()
    return ids


def number_of(message):
    return int(message.data().split(b":")[1])


def drain(consumer, quiet_ms=500):
    numbers = []
    while True:
        try:
            message = consumer.receive(quiet_ms)
        except pulsar.Timeout:
            return numbers
        numbers.append(number_of(message))
        consumer.acknowledge(message)


def read_all(server, topic, name="audit", quiet_ms=500):
    with connected(server) as client:
        return drain(client.subscribe(topic, name, initial_position=EARLIEST), quiet_ms)


def segments(server):
    files = glob.glob(os.path.join(server.folder, "log", "*.seg"))
    return sorted(files, key=lambda path: int(pathlib.Path(path).stem))


def find(path, needle):
    """Offset of the last occurrence in the file."""
    data = pathlib.Path(path).read_bytes()
    at = data.rfind(needle)
    assert at >= 0, (path, needle)
    return at


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def refused(server):
    """Standard error of a start that must fail, without any change in the folder."""
    before = listing(server.folder)
    command = [BINARY, "standalone", "--data-dir", server.folder]
    command += ["--set", f"brokerServicePort={server.port}", "--set", f"webServicePort={server.web_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    assert done.returncode == 1, done
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hulse: "), done.stderr
    assert listing(server.folder) == before
    return last


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.name != "LOCK")


def cpu_seconds(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def metric(server, name):
    lines = server.get("/metrics", raw=True).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def lines_with(server, *words):
    return [line for line in server.log_text().splitlines() if all(word in line for word in words)]


# --- torn tails and damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hurt", ["cut behind", "garbage behind", "cut within", "garbled", "header garbled"])
def test_a_torn_tail_costs_the_last_commit_at_most(serve, hurt):
    server = serve().start()
    server.announce("damage in the log")
    with connected(server) as client:
        client.subscribe("torn", "audit").close()
        publish(client, "torn", range(20))
        # Written in one go after everything else has come to rest.
        time.sleep(1.2)
        publish(client, "torn", [20])
    server.kill9()
    newest = segments(server)[-1]
    at = find(newest, b"m:000020:")
    behind = (at + 200) // 4096 * 4096 + 4096
    if hurt == "cut behind":
        os.truncate(newest, behind)
    elif hurt == "garbage behind":
        overwrite(newest, behind, random.randbytes(3 * 4096 + 77))
    elif hurt == "cut within":
        os.truncate(newest, at + 100)
    elif hurt == "garbled":
        overwrite(newest, at + 50, b"#!#!#!")
    else:
        overwrite(newest, at // 4096 * 4096 + 8, b"\xff" * 8)
    server.start()
    seen = read_all(server, "torn")
    assert seen[:20] == list(range(20))
    assert seen[20:] == ([20] if hurt.endswith("behind") else []), hurt
    with connected(server) as client:
        publish(client, "torn", [21])
    assert read_all(server, "torn") == [21]


@pytest.mark.parametrize("where", ["sealed"])
def test_damage_in_the_middle_is_reported_and_never_skipped(serve, where):
    server = serve()
    for expected in ("damage in the log", "entry is damaged", "cannot read, trying again"):
        server.announce(expected)
    server.start()
    size, count = (200, 40) if where == "active" else (1 << 20, 70)
    with connected(server) as client:
        for topic in ("hurt", "sound"):
            client.subscribe(topic, "sub", initial_position=EARLIEST).close()
        ids = publish(client, "hurt", range(count), size)
        publish(client, "sound", range(count))
    server.kill9() if where == "active" else server.stop()
    file = segments(server)[0]
    assert (where == "sealed") == (len(segments(server)) > 1)
    damaged = find(file, b"m:000010:") + 60
    overwrite(file, damaged, b"#!#!#!")
    server.start()

    with connected(server) as client:
        consumer = client.subscribe("hurt", "sub")
        assert drain(consumer, 1000) == list(range(10)), "up to the damage"
        before, errors, began = cpu_seconds(server), len(server.log_text().splitlines()), time.monotonic()
        with pytest.raises(pulsar.Timeout):
            consumer.receive(3000)
        assert cpu_seconds(server) - before < 0.5
        assert len(server.log_text().splitlines()) - errors <= 2 * (time.monotonic() - began) + 2, "no flood"
        reported = lines_with(server, "ERROR", os.path.basename(file))
        offsets = [int(line.split('"offset":')[1].split(",")[0].split("}")[0]) for line in reported]
        assert any(damaged - 512 <= offset <= damaged for offset in offsets), reported
        # Behind it, and beside it, everything is there.
        reader = client.create_reader("hurt", ids[10])
        assert [number_of(reader.read_next(5000)) for _ in range(count - 11)] == list(range(11, count))
        publish(client, "hurt", [count])
        assert number_of(reader.read_next(5000)) == count
        assert drain(client.subscribe("sound", "sub")) == list(range(count))
        stats = server.get(TENANT + "hurt/stats")
        assert stats["subscriptions"]["sub"]["msgBacklog"] == count + 1 - 10, "it still counts"
        # An operator decides to go on without it.
        consumer.seek(ids[11])
        assert drain(client.subscribe("hurt", "sub") if not consumer.is_connected() else consumer, 1500)[-1] == count
    server.stop()


# --- files that are missing, newer, or of two times --------------------------------------------------------------------


def filled(serve, topics=("kept",)):
    """A stopped server with something in its folder."""
    server = serve().start()
    with connected(server) as client:
        for topic in topics:
            publish(client, topic, range(5))
    server.stop()
    return server


def test_a_missing_metadata_store_is_refused(serve):
    server = filled(serve)
    whole = os.path.join(server.folder, "metadata")
    shutil.move(whole, server.folder + ".away")
    text = refused(server)
    assert "metadata" in text and "restore" in text and "--wipe-data" in text, text
    os.mkdir(whole)
    assert "restore" in refused(server)
    os.rmdir(whole)
    shutil.move(server.folder + ".away", whole)
    server.start()
    assert read_all(server, "kept") == list(range(5))


def test_a_missing_log_is_refused(serve):
    server = filled(serve)
    for what in ("log", "log/" + os.path.basename(segments(server)[-1])):
        path = os.path.join(server.folder, what)
        shutil.move(path, server.folder + ".away")
        text = refused(server)
        assert "log" in text and ("restore" in text or "put it back" in text), text
        shutil.move(server.folder + ".away", path)
    server.start()
    assert read_all(server, "kept") == list(range(5))


def test_a_missing_segment_is_refused(serve):
    server = serve().start()
    with connected(server) as client:
        publish(client, "kept", range(140), 1 << 20)
    server.stop()
    assert len(segments(server)) == 3
    *older, newest = segments(server)
    for file in [*older, newest]:
        os.rename(file, server.folder + ".away")
        text = refused(server)
        if file == newest:
            # Only the metadata store knows that there was one.
            assert "in segment 3 before" in text and "put the file back" in text, text
        else:
            assert "log/" + os.path.basename(file) in text and "put it back" in text, text
        os.rename(server.folder + ".away", file)
    server.start()
    assert read_all(server, "kept") == list(range(140))


def test_newer_formats_are_refused(serve):
    server = filled(serve)
    segment = segments(server)[-1]
    store = os.path.join(server.folder, "metadata", "metadata.db")
    for path, offset, newer in ((segment, 8, struct.pack("<I", 99)), (store, 8, struct.pack(">I", 99))):
        block = pathlib.Path(path).read_bytes()[:4096]
        overwrite(path, offset, newer)
        if path == segment:
            changed = bytearray(pathlib.Path(path).read_bytes()[:4096])
            changed[12:16] = bytes(4)
            overwrite(path, 12, struct.pack("<I", crc32c(changed)))
        text = refused(server)
        assert os.path.basename(path) in text and "99" in text and "newer" in text, text
        overwrite(path, 0, block)
    server.start()
    assert read_all(server, "kept") == list(range(5))


def test_foreign_files_are_refused_or_left_alone(serve):
    server = filled(serve)
    server.announce("file does not belong to the log")
    for name in ("log/notes.txt", "log/99x.seg", "metadata/readme", "holiday.jpg"):
        pathlib.Path(server.folder, name).write_text("not ours")
    pathlib.Path(server.folder, "log/77.seg").write_text("not ours")
    text = refused(server)
    assert "77.seg" in text and "not a segment of this log" in text
    os.unlink(os.path.join(server.folder, "log/77.seg"))
    server.start()
    assert read_all(server, "kept") == list(range(5))
    assert pathlib.Path(server.folder, "log/notes.txt").read_text() == "not ours"


@pytest.mark.parametrize("name", ["metadata/metadata.db", "log/1.seg", "FORMAT"])
@pytest.mark.parametrize("how", ["empty", "noise", "half"])
def test_a_ruined_file_is_refused_with_its_name(serve, name, how):
    server = filled(serve)
    path = os.path.join(server.folder, name)
    whole = pathlib.Path(path).read_bytes()
    ruined = {"empty": b"", "noise": random.randbytes(50_000), "half": whole[: len(whole) // 2]}[how]
    if (name, how) == ("log/1.seg", "half"):
        ruined = whole[:100]  # Half of a segment is more than all that was written into it.
    pathlib.Path(path).write_bytes(ruined)
    assert os.path.basename(path) in refused(server)
    pathlib.Path(path).write_bytes(whole)
    server.start()
    assert read_all(server, "kept") == list(range(5))


def test_an_older_copy_of_one_half_is_refused(serve, tmp_path):
    server = filled(serve, ["kept"])
    for half in ("metadata", "log"):
        shutil.copytree(os.path.join(server.folder, half), tmp_path / "old" / half)
    server.start()
    with connected(server) as client:
        publish(client, "kept", range(5, 10))
        publish(client, "later", range(5))
    server.stop()
    for half in ("metadata", "log"):
        path = os.path.join(server.folder, half)
        shutil.move(path, tmp_path / "new")
        shutil.copytree(tmp_path / "old" / half, path)
        text = refused(server)
        assert "older" in text and "restore" in text, text
        shutil.rmtree(path)
        shutil.move(tmp_path / "new", path)
    server.start()
    assert read_all(server, "kept") == list(range(10))
    assert read_all(server, "later") == list(range(5))


def test_halves_of_two_nodes_are_refused(serve):
    first, second = filled(serve), filled(serve)
    shutil.rmtree(os.path.join(first.folder, "log"))
    shutil.copytree(os.path.join(second.folder, "log"), os.path.join(first.folder, "log"))
    text = refused(first)
    assert "restore" in text, text


def test_a_folder_without_permission_and_a_file_in_its_place(serve, tmp_path):
    server = serve()
    pathlib.Path(server.folder).write_text("a file")
    command = [BINARY, "standalone", "--data-dir", server.folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    assert done.returncode == 1 and server.folder in done.stderr, done
    if os.geteuid() == 0:
        return  # Root may read everything.
    os.mkdir(tmp_path / "closed", 0o000)
    done = subprocess.run(command[:3] + [str(tmp_path / "closed")], capture_output=True, text=True, timeout=5)
    assert done.returncode == 1 and "Permission denied" in done.stderr, done


# --- hostile bytes ---------------------------------------------------------------------------------------------------


class Bystander(threading.Thread):
    """An honest client that must not notice anything."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stopping, self.sent, self.seen, self.slowest, self.error = server, False, 0, [], 0.0, None

    def run(self):
        try:
            with connected(self.server) as client:
                consumer = client.subscribe("honest", "sub", initial_position=EARLIEST)
                producer = client.create_producer("honest", send_timeout_millis=30000)
                while not self.stopping:
                    started = time.monotonic()
                    producer.send(numbered(self.sent))
                    self.sent += 1
                    message = consumer.receive(30000)
                    consumer.acknowledge(message)
                    self.seen.append((number_of(message), message.redelivery_count()))
                    self.slowest = max(self.slowest, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001
            self.error = error

    def finish(self):
        self.stopping = True
        self.join(20)
        assert self.error is None, self.error
        assert self.sent > 10 and self.seen == [(number, 0) for number in range(self.sent)]
        return self.slowest


def throw(port, data, keep=None):
    """Sends bytes and reads what comes; or, with `keep`, leaves the connection open there."""
    try:
        peer = socket.create_connection(("127.0.0.1", port), 5)
        peer.settimeout(0.05)
        with contextlib.suppress(OSError):
            peer.sendall(data)
        if keep is not None:
            keep.append(peer)
            return
        with contextlib.suppress(OSError):
            while peer.recv(1 << 16):
                pass
        peer.close()
    except OSError:
        pass


def connect_frame():
    body = wire.field(1, "x") + wire.field(4, 21)
    message = wire.field(1, wire.CONNECT) + wire.field(wire.CONNECT, body)
    return struct.pack(">II", len(message) + 4, len(message)) + message


def test_hostile_bytes_hurt_nobody_else(serve):
    server = serve(keepAliveIntervalSeconds=2).start()
    bystander = Bystander(server)
    bystander.start()
    until(lambda: bystander.sent > 10)
    rss = server.rss_mb()
    dice = random.Random(5)
    connect = connect_frame()
    half_open = []
    for port in (server.port, server.web_port):
        for _ in range(60):
            throw(port, dice.randbytes(dice.choice((1, 4, 8, 9, 200, 70_000))))
        for size in (0, 1, 3, 4, 0x7FFFFFFF, 0xFFFFFFFF, 5 << 20, 6 << 20):
            throw(port, struct.pack(">I", size) + dice.randbytes(3000))
            throw(port, struct.pack(">II", size, size) + dice.randbytes(3000))
            throw(port, connect + struct.pack(">II", size, dice.choice((0, 1, size))) + dice.randbytes(3000))
        for _ in range(40):
            throw(port, connect + struct.pack(">II", 104, 100) + dice.randbytes(100))
            throw(port, connect[: dice.randrange(len(connect))], half_open)
            throw(port, connect + connect)
        # A large frame that never comes: the memory for it must not be taken before it is there.
        for _ in range(60):
            throw(port, connect + struct.pack(">II", 5 << 20, 20) + b"x" * 1000, half_open)
    throw(server.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    for request in (
        b"GET " + b"/x" * 50_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + b"{" * 100_000,
        b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ffffffffff\r\n" + b"[" * 9,
        b"GET /admin/v2/persistent/%00/%ff/..%2f HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        throw(server.web_port, request)
    for body in (b"[" * 3_000_000, b'{"a":' * 100_000, b"\xff" * 1000, b"", b"null"):
        for path in ("/admin/v2/tenants/x", "/admin/v2/namespaces/public/y", TENANT + "z/partitions"):
            http_client = http.client.HTTPConnection("127.0.0.1", server.web_port, timeout=5)
            with contextlib.suppress(OSError, http.client.HTTPException):
                http_client.request("PUT", path, body, {"Content-Type": "application/json"})
                assert http_client.getresponse().status < 500, (path, body[:10])
            http_client.close()
    # Peers that do not finish their handshake are shown the door; nobody else is.
    def closed(peer):
        try:
            peer.settimeout(0.001)
            return peer.recv(1 << 16) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    until(lambda: sum(map(closed, half_open[:40])) >= 38, 15, "half handshakes to be closed")
    print(f"slowest round trip {bystander.finish() * 1000:.0f} ms, {server.rss_mb() - rss:.0f} MB more")
    assert server.rss_mb() - rss < 60
    for peer in half_open:
        peer.close()


def test_thousands_of_connections_come_and_go(serve):
    server = serve().start()
    bystander = Bystander(server)
    bystander.start()
    until(lambda: bystander.sent > 10)
    rss = server.rss_mb()
    connect = connect_frame()
    for port in (server.port, server.web_port):
        for number in range(3000):
            peer = socket.create_connection(("127.0.0.1", port), 5)
            if number % 3 == 0:
                peer.sendall(connect[: number % len(connect)])
            elif number % 3 == 1:
                # Reset instead of a polite end.
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sendall(connect)
            peer.close()
    bystander.finish()
    until(lambda: metric(server, "pulsar_active_connections") == 0, 10, "all connections to go")
    assert server.rss_mb() - rss < 20
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 60


# --- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_under_load_is_quick_and_clean(serve, signals):
    server = serve().start()
    receipts, stopping = [], threading.Event()
    with connected(server) as client:
        client.subscribe("load", "audit").close()
        producer = client.create_producer("load", batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0)
        consumer = client.subscribe("load", "other", initial_position=EARLIEST)

        def load():
            number = 0
            while not stopping.is_set():
                producer.send_async(numbered(number), lambda r, _, n=number: r == pulsar.Result.Ok and receipts.append(n))
                number += 1

        def eat():
            while not stopping.is_set():
                with contextlib.suppress(pulsar.PulsarException):
                    consumer.acknowledge(consumer.receive(200))

        threads = [threading.Thread(target=work) for work in (load, eat)]
        for thread in threads:
            thread.start()
        until(lambda: len(receipts) > 3000)
        began = time.monotonic()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 5
        stopping.set()
        server.start()
        for thread in threads:
            thread.join(20)
        producer.flush()
    seen = read_all(server, "load", quiet_ms=1000)
    assert set(receipts) <= set(seen)
    assert list(dict.fromkeys(seen)) == sorted(set(seen)), "in order, apart from repetitions"


def test_a_stop_during_the_start(serve):
    server = filled(serve)
    for delay_ms in range(0, 60, 4):
        server.start(wait=False)
        time.sleep(delay_ms / 1000)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(10)
        # Before the handler is in place the signal ends the process as it ends any other.
        assert code in (0, -signal.SIGTERM), code
    server.start()
    assert read_all(server, "kept") == list(range(5))


def test_a_stop_with_a_peer_that_does_not_read(serve):
    server = serve().start()
    with connected(server) as client:
        publish(client, "stuck", range(60), 1 << 20)
    stuck = wire.Connection(server.port)
    stuck.subscribe("persistent://public/default/stuck", "sub")
    stuck.flow(1000)
    slow_http = socket.create_connection(("127.0.0.1", server.web_port))
    slow_http.sendall(b"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    idle_http = socket.create_connection(("127.0.0.1", server.web_port))
    time.sleep(0.5)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 8
    for peer in (stuck.socket, slow_http, idle_http):
        peer.close()


def test_ports_in_use(serve):
    server = serve().start()
    for key in ("brokerServicePort", "webServicePort"):
        taken = server.port if key == "brokerServicePort" else server.web_port
        other = serve(None)
        other.port, other.web_port = (taken, free_port()) if key == "brokerServicePort" else (free_port(), taken)
        command = [BINARY, "standalone", "--data-dir", other.folder, "--set", f"brokerServicePort={other.port}"]
        done = subprocess.run(command + ["--set", f"webServicePort={other.web_port}"], capture_output=True, text=True)
        assert done.returncode == 1 and key in done.stderr and str(taken) in done.stderr
        assert not os.path.exists(other.folder), "nothing is created for a start that fails"
