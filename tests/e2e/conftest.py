import sys
import pathlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from hulse import Server  # noqa: E402


@pytest.fixture
def server(tmp_path):
    """A running server; afterwards it is stopped cleanly and its log is scanned."""
    running = Server(tmp_path / "data").start()
    yield running
    running.stop()
    assert running.unannounced() == []


@pytest.fixture
def configured(tmp_path):
    """Starts servers with settings of their own: `configured(key=value)`."""
    started = []

    def start(*arguments, **settings):
        running = Server(tmp_path / f"data{len(started)}", *arguments, settings=settings)
        started.append(running)
        return running.start()

    yield start
    for running in started:
        running.stop()
        assert running.unannounced() == []
