"""Just enough of the binary protocol for what the official Python client cannot ask for: acknowledgements with a receipt."""

import socket
import struct

CONNECT, CONNECTED, SUBSCRIBE, MESSAGE, ACK, FLOW, SUCCESS, ERROR = 2, 3, 4, 9, 10, 11, 13, 14
PING, PONG, ACK_RESPONSE = 18, 19, 38


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """Field number to value; of repeated fields the last."""
    found, at = {}, 0

    def read():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = read()
        if key & 7 == 0:
            found[key >> 3] = read()
        elif key & 7 == 2:
            size = read()
            found[key >> 3] = data[at : at + size]
            at += size
        elif key & 7 == 1:
            at += 8
        else:
            at += 4
    return found


class Connection:
    """One connection after the handshake."""

    def __init__(self, port, timeout=10.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.buffer = bytearray()
        self.command(CONNECT, field(1, "wire-test") + field(4, 21))
        kind, _, _ = self.read()
        assert kind == CONNECTED, kind

    def command(self, kind, body):
        message = field(1, kind) + field(kind, body)
        self.socket.sendall(struct.pack(">II", len(message) + 4, len(message)) + message)

    def read(self):
        """The next command: its type, its fields and what follows it in the frame. PING is answered in passing."""
        while True:
            frame = self.take(struct.unpack(">I", self.take(4))[0])
            size = struct.unpack(">I", frame[:4])[0]
            command = fields(frame[4 : 4 + size])
            kind = command[1]
            if kind == PING:
                self.command(PONG, b"")
                continue
            return kind, fields(command.get(kind, b"")), frame[4 + size :]

    def take(self, size):
        while len(self.buffer) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the server")
            self.buffer += data
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def subscribe(self, topic, subscription, consumer=1, shared=True, earliest=True):
        body = field(1, topic) + field(2, subscription) + field(3, 1 if shared else 0) + field(4, consumer)
        self.command(SUBSCRIBE, body + field(5, 1) + field(6, "wire") + field(13, 1 if earliest else 0))
        kind, answer, _ = self.read()
        assert kind == SUCCESS, (kind, answer)

    def flow(self, permits, consumer=1):
        self.command(FLOW, field(1, consumer) + field(2, permits))

    def ack(self, position, request, consumer=1):
        """An individual acknowledgement whose receipt is asked for."""
        body = field(1, consumer) + field(2, 0) + field(3, field(1, position[0]) + field(2, position[1]))
        self.command(ACK, body + field(8, request))

    def close(self):
        self.socket.close()


def position(message):
    """(ledger, entry) of a MESSAGE command."""
    identity = fields(message[2])
    return identity[1], identity[2]
