"""What an operator sees: start, stop, refusals, REST."""

import json
import os
import signal
import subprocess
import urllib.request

import pulsar
import pytest

from hulse import BINARY, Server, free_port, until


def refused(*arguments):
    """Standard error of a start that must fail."""
    done = subprocess.run([BINARY, "standalone", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1, done
    return done.stderr


def test_it_says_where_it_listens_and_what_to_try(server):
    server.process.send_signal(signal.SIGTERM)
    out, _ = server.process.communicate(timeout=30)
    for expected in (f":{server.port}", f":{server.web_port}", server.folder):
        assert expected in out, out


def test_a_second_instance_is_refused(server):
    assert "in use by another process" in refused("--data-dir", server.folder)


def test_foreign_and_newer_folders_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    assert "not a hulse data folder" in refused("--data-dir", str(tmp_path))
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "FORMAT").write_text("hulse data folder 99\n")
    assert "format version 99" in refused("--data-dir", str(newer))


def test_a_port_in_use_and_wrong_settings_are_named(server, tmp_path):
    web = f"webServicePort={free_port()}"
    text = refused("--data-dir", str(tmp_path / "a"), "--set", f"brokerServicePort={server.port}", "--set", web)
    assert str(server.port) in text and "brokerServicePort" in text
    text = refused("--data-dir", str(tmp_path / "b"), "--set", "brokerServicePort=http")
    assert "brokerServicePort=http (--set) is not allowed" in text


def test_wipe_data_forgets_everything(server):
    client = pulsar.Client(server.url)
    client.create_producer("gone").send(b"x")
    client.close()
    server.stop()
    server.arguments = ["--wipe-data"]
    server.start()
    assert server.get("/admin/v2/persistent/public/default") == []


def test_tenants_namespaces_topics_and_stats_over_rest(server):
    assert server.get("/admin/v2/clusters") == ["standalone"]
    assert "public" in server.get("/admin/v2/tenants")
    assert server.get("/admin/v2/namespaces/public") == ["public/default"]
    body = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert server.call("PUT", "/admin/v2/tenants/acme", body)[0] == 204
    assert server.call("PUT", "/admin/v2/tenants/acme", body)[0] == 409
    assert server.call("PUT", "/admin/v2/namespaces/acme/eu")[0] == 204
    assert server.call("PUT", "/admin/v2/persistent/acme/eu/plain")[0] == 204
    assert server.call("PUT", "/admin/v2/persistent/acme/eu/parts/partitions", 3)[0] == 204
    topics = server.get("/admin/v2/persistent/acme/eu")
    assert "persistent://acme/eu/plain" in topics
    assert server.get("/admin/v2/persistent/acme/eu/parts/partitions")["partitions"] == 3

    client = pulsar.Client(server.url)
    consumer = client.subscribe("persistent://acme/eu/plain", "sub")
    producer = client.create_producer("persistent://acme/eu/plain", producer_name="me")
    for _ in range(5):
        producer.send(b"x")
    for _ in range(2):
        consumer.acknowledge(consumer.receive(10_000))
    path = "/admin/v2/persistent/acme/eu/plain/stats"
    until(lambda: server.get(path)["subscriptions"]["sub"]["msgBacklog"] == 3, what="two acknowledgements")
    stats = server.get(path)
    assert stats["msgInCounter"] == 5
    assert [publisher["producerName"] for publisher in stats["publishers"]] == ["me"]
    assert stats["subscriptions"]["sub"]["type"] == "Exclusive"
    client.close()

    # What would have no effect is refused by name.
    code, text = server.call("PUT", "/admin/v2/namespaces/acme/us", {"message_ttl_in_seconds": 60})
    assert code == 501 and "message_ttl_in_seconds" in text
    assert server.call("PUT", "/admin/v2/namespaces/acme/us", {"retention_policies": None})[0] == 204
    assert server.call("DELETE", "/admin/v2/namespaces/acme/us?force=true")[0] == 405
    assert server.call("DELETE", "/admin/v2/namespaces/acme/us")[0] == 204
    code, text = server.call("GET", "/admin/v2/persistent/acme/eu/absent/stats")
    assert code == 404 and "reason" in json.loads(text)
    assert server.call("GET", "/admin/v2/nonsense")[0] == 404
    assert server.get("/status.html", raw=True).strip() == "OK"
    assert "# TYPE" in server.get("/metrics", raw=True)


def test_topics_are_not_created_when_switched_off(configured):
    server = configured(allowAutoTopicCreation="false")
    client = pulsar.Client(server.url, operation_timeout_seconds=5)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("nowhere")
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe("nowhere", "sub")
    client.close()


def test_idle_memory_and_start_on_an_empty_folder(server):
    """Figures are printed, not judged by the clock; memory is judged."""
    print(f"ready after {server.ready_seconds * 1000:.0f} ms, {server.rss_mb():.1f} MB resident")
    assert server.rss_mb() < 30
    assert os.path.exists(os.path.join(server.folder, "FORMAT"))
