"""Starts the real binary for a test, waits for it by condition, and reads its log afterwards."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

BINARY = os.environ.get("HULSE_BIN", "target/release/hulse")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds=30.0, what="the condition"):
    """Waits for a true value and returns it; the deadline is for hangs, not for speed."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.005)


class Server:
    """One `hulse standalone` on free ports of the loopback address."""

    def __init__(self, folder, *arguments, settings=None):
        self.folder = str(folder)
        self.arguments = list(arguments)
        self.settings = dict(settings or {})
        self.port, self.web_port = free_port(), free_port()
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.web = f"http://127.0.0.1:{self.web_port}"
        self.log_path = os.path.join(os.path.dirname(self.folder), os.path.basename(self.folder) + ".log")
        self.announced = []
        self.process = None

    def start(self, wait=True):
        command = [BINARY, "standalone", "--data-dir", self.folder, "--log-format", "json"]
        settings = {"brokerServicePort": self.port, "webServicePort": self.web_port, **self.settings}
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self.log = open(self.log_path, "ab")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command + self.arguments, stdout=subprocess.PIPE, stderr=self.log, stdin=subprocess.DEVNULL, text=True
        )
        if wait:
            until(self.healthy, what="the health check")
            self.ready_seconds = time.monotonic() - self.started
        return self

    def healthy(self):
        if self.process.poll() is not None:
            raise AssertionError(f"hulse ended with {self.process.returncode}: {self.log_text()[-2000:]}")
        try:
            return self.get("/admin/v2/brokers/health", raw=True) == "ok"
        except OSError:
            return False

    def get(self, path, raw=False):
        with urllib.request.urlopen(self.web + path, timeout=10) as answer:
            body = answer.read().decode()
            return body if raw else json.loads(body)

    def metric(self, name):
        """The value of a series without further labels."""
        for line in self.get("/metrics/", raw=True).splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no series {name}")

    def call(self, method, path, body=None):
        """Status code and body text of any request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.web + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def announce(self, pattern):
        """A warning or error that the test provokes; anything else in the log fails it."""
        self.announced.append(re.compile(pattern))

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """Clean stop; the exit code must be 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(timeout=30)
            assert code == 0, f"hulse ended with {code}: {self.log_text()[-2000:]}"

    def log_text(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def unannounced(self):
        """Lines of level WARN or ERROR that no test announced."""
        found = []
        for line in self.log_text().splitlines():
            bad = '"level":"ERROR"' in line or '"level":"WARN"' in line or "panicked" in line
            if bad and not any(pattern.search(line) for pattern in self.announced):
                found.append(line)
        return found

    def rss_mb(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")
