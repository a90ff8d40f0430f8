"""One million messages of 1 KB through each of: exclusive and shared, single and batched. Counts, order, repeats."""

import argparse
import pathlib
import shutil
import sys
import tempfile

import pulsar

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from exchange import exactly_once  # noqa: E402
from hulse import Server  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hulse-million-"))
    server = Server(folder / "data").start()
    for kind, consumers in ((pulsar.ConsumerType.Exclusive, 1), (pulsar.ConsumerType.Shared, 2)):
        for batched in (False, True):
            topic = f"million-{kind.name.lower()}-{'batched' if batched else 'single'}"
            took = exactly_once(server.url, topic, kind, consumers, batched, options.messages // 2)
            print(f"{topic}: {options.messages} exactly once, in order; {options.messages / took:.0f} msg/s", flush=True)
    server.stop()
    assert server.unannounced() == [], server.unannounced()[:5]
    shutil.rmtree(folder)
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main()
