"""Calls over TCP: authentication, answers, and the errors of failed calls."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import pytest
from tests.python import Python

from hookline import errors
from hookline.distributed.codec import CodecError, decode, encode
from hookline.distributed.connections import (
    MAX_UNAUTHENTICATED,
    UNREAD_SECS,
    Address,
    Listener,
    SocketConnection,
    connect,
)

# The connections themselves: a stranger, a torn message, a slow reader.
from hookline.distributed.rpc import ServerClient, SocketPeerClient

from .targets import at_once, until


class OwnError(FileNotFoundError):
    """A class that only this process knows."""


class Server:
    """Answers calls by their first word."""

    def __init__(self):
        self.free, self.asked, self.heard = threading.Event(), Future(), []
        self.connections = set()

    def receive(self, message):
        word, *rest = message
        self.heard.append(message)
        # Each connection has a thread of its own.
        self.connections.add(threading.current_thread())
        if word == "echo":
            return rest
        if word == "block":
            self.free.wait(30)
            return "late"
        if word == "ask":
            return self.asked.result(30)
        if word == "lock":
            return threading.Lock()
        raise {
            "os": FileNotFoundError(2, "no such file"),
            "op": errors.AbortedError(None, None, "gone"),
            "key": KeyError("v"),
        }.get(word, OwnError("no file here"))


@pytest.fixture
def server():
    made = Server()
    made.listener = Listener(made.receive, "127.0.0.1")
    yield made
    made.free.set()
    made.listener.close()


def caller(server, timeout_secs=30.0):
    address = server.listener.address
    return ServerClient("Server 7", address, lambda: address, timeout_secs)


@pytest.fixture
def calls(server):
    return caller(server)


def test_arrays_of_any_size_are_returned_unchanged_and_read_only(calls):
    for count in (0, 3, 100_000, 3_000_000):
        array = np.arange(count, dtype=np.float32)
        name, back = calls.call(("echo", "name", array)).get()
        assert name == "name"
        np.testing.assert_array_equal(back, array)
        if count > 3:
            with pytest.raises(ValueError, match="read-only"):
                back[0] = 1


def test_sequential_calls_share_a_connection_and_concurrent_ones_do_not(calls, server):
    for number in range(20):
        assert calls.call(("echo", number)).get() == (number,)
    assert len(server.connections) == 1

    asked = calls.call(("ask",))
    assert calls.call(("echo", 1)).get() == (1,)
    server.asked.set_result("decided")
    assert asked.get() == "decided"
    assert len(server.connections) == 2


def test_threads_get_their_own_answers(server):
    calls, wrong = caller(server), []

    def ask(name):
        for number in range(50):
            if calls.call(("echo", name, number)).get() != (name, number):
                wrong.append((name, number))

    at_once(*(partial(ask, name) for name in range(8)))
    assert wrong == []


@pytest.mark.parametrize(
    ("word", "kind", "text"),
    [
        ("op", errors.AbortedError, "gone"),
        ("os", FileNotFoundError, "no such file"),
        ("key", KeyError, "'v'"),
        ("own", FileNotFoundError, "OwnError: no file here"),
        ("lock", TypeError, "A lock is not plain data"),
    ],
)
def test_server_error_reaches_the_caller_and_the_connection_stays(calls, server, word, kind, text):
    for _ in range(3):
        with pytest.raises(kind, match=text):
            calls.call((word,)).get()
    assert calls.call(("echo", 1)).get() == (1,)
    assert len(server.connections) == 1


def test_close_ends_connections_after_pending_calls(calls, server):
    asked = calls.call(("ask",))
    assert calls.call(("echo", 1)).get() == (1,)
    calls.close()
    server.asked.set_result("decided")
    assert asked.get() == "decided"
    for thread in server.connections:
        thread.join(30)
        assert not thread.is_alive()
    assert calls.call(("echo", 2)).get() == (2,), "a call opens another one for itself"


def test_delayed_answer_is_not_taken_for_another_calls(server):
    calls = caller(server, timeout_secs=0.2)
    late = calls.call(("block",))
    with pytest.raises(errors.UnavailableError, match="Server 7 gave no answer in time"):
        late.get()
    server.free.set()
    assert calls.call(("echo", 1)).get() == (1,)


def test_unread_answer_is_not_taken_for_another_calls(calls):
    calls.call(("echo", "unread"))
    assert calls.call(("echo", 1)).get() == (1,)


def test_unreadable_answer_names_the_server(calls, monkeypatch):
    asked = calls.call(("echo", 1))
    monkeypatch.setattr(asked._line, "receive", lambda: decode(b"\xc1"))
    with pytest.raises(CodecError, match="Server 7 gave an answer that cannot be read"):
        asked.get()


def test_connection_closed_by_another_thread_is_no_error_of_this_call(calls, server):
    class Loses(ServerClient):
        @property
        def _address(self):
            found, self.known = self.known, None
            return found

        @_address.setter
        def _address(self, address):
            self.known = address

    assert Loses(calls.who, server.listener.address, calls._find_address, 30.0).call(("echo", 1)).get() == (1,)


def test_unencodable_argument_is_the_callers_error_and_nothing_is_sent(calls, server):
    calls.call(("echo", 1)).get()
    for thing in (threading.Lock(), lambda: 1, {1, 2}, np.float32, np.int64(1)):
        with pytest.raises(TypeError, match="not plain data"):
            calls.call(("echo", thing))
    assert calls.call(("echo", 1)).get() == (1,)
    assert server.heard == [("echo", 1)] * 2
    assert len(server.connections) == 1


def test_caller_with_another_key_is_refused(server, caplog):
    forged = server.listener.address._replace(key=bytes(32))
    with pytest.raises(errors.UnavailableError, match="Server 7 cannot be reached"):
        ServerClient("Server 7", forged, lambda: forged, 30.0).call(("echo", "forged"))
    with socket.create_connection(server.listener.address[:2], 30) as stranger:
        stranger.settimeout(None)
        line = Connection(os.dup(stranger.fileno()))
        line.recv_bytes()
        line.send_bytes(encode((True, ("echo", "stranger")))[0])
        assert b"FAILURE" in line.recv_bytes()
        with pytest.raises((EOFError, OSError)):
            line.recv_bytes()
    assert caller(server).call(("echo", 1)).get() == (1,)
    assert server.heard == [("echo", 1)]
    until(lambda: "A connection was refused" in caplog.text)


class Boom:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickle_is_never_unpickled_even_with_the_key(server, tmp_path, caplog):
    line = connect(server.listener.address, 30.0)
    line._connection.send_bytes(pickle.dumps((True, ("echo", Boom(str(tmp_path / "boom"))))))
    with pytest.raises((EOFError, OSError)):
        line.receive()

    assert list(tmp_path.iterdir()) == []
    assert "A message cannot be read" in caplog.text
    assert caller(server).call(("echo", 1)).get() == (1,)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
def test_answer_may_stay_unread_and_a_vanished_host_is_noticed(server, monkeypatch):
    lines = []

    class Kept(SocketConnection):
        def __init__(self, sock, key, *, calls):
            super().__init__(sock, key, calls=calls)
            lines.append((calls, sock))

    monkeypatch.setattr("hookline.distributed.connections.SocketConnection", Kept)
    answer = caller(server).call(("echo", 1))
    assert answer.get() == (1,)

    def limits(calls):
        (sock,) = [sock for called, sock in lines if called == calls]
        send_secs, _ = struct.unpack("@ll", sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))
        tcp = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)]
        return send_secs, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *tcp

    assert limits(calls=True) == (30, 1, 20, 60_000)
    assert limits(calls=False) == (UNREAD_SECS, 1, 20, 0)


def test_slow_or_long_key_proof_is_cut_off(server, monkeypatch):
    monkeypatch.setattr("hookline.distributed.connections.HANDSHAKE_SECS", 0.5)
    for size in (200, 2**30):
        with socket.create_connection(server.listener.address[:2], 30) as stranger:
            stranger.settimeout(None)
            Connection(os.dup(stranger.fileno())).recv_bytes()
            stranger.sendall(size.to_bytes(4, "big"))
            stranger.settimeout(0.1)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 200:
                    try:
                        assert stranger.recv(1) == b""
                        break
                    except TimeoutError:
                        sent += stranger.send(b"x")
            assert sent < 100
    assert caller(server).call(("echo", 1)).get() == (1,)


def test_closed_server_port_gives_possible_reasons(closed_port):
    address, failures = Address("127.0.0.1", closed_port, bytes(32)), Failures()
    hint = rf"at 127.0.0.1:{closed_port} .*ConnectionRefusedError.*set ClusterOptions\(over_ray=True\) on the chief"
    with pytest.raises(errors.UnavailableError, match=f"Server 7 cannot be reached {hint}"):
        ServerClient("Server 7", address, lambda: address, 30.0).call(("echo", 1))
    SocketPeerClient([address]).notify(0, "echo", on_failure=failures)
    (error,) = failures.all
    assert re.search(f"Parameter server 0 cannot be reached by another server {hint}", str(error))


def test_connections_need_no_md5_of_openssl(tmp_path):
    """As on systems in FIPS mode."""
    config = tmp_path / "openssl.cnf"
    config.write_text("openssl_conf = a\n[a]\nalg_section = b\n[b]\ndefault_properties = fips=yes\n")
    script = (
        "import _hashlib\n"
        "try: _hashlib.new('md5'); raise SystemExit('md5 is not refused')\n"
        "except ValueError: pass\n"
        "from hookline.distributed.connections import Listener\n"
        "from hookline.distributed.rpc import ServerClient\n"
        "address = Listener(lambda message: message, '127.0.0.1').address\n"
        "print(ServerClient('It', address, lambda: address, 30.0).call(('echo',)).get())"
    )
    environ = {**os.environ, "OPENSSL_CONF": str(config), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "('echo',)\n", ran.stderr


def test_server_proves_its_key_before_a_call():
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as fake:

        def pretend():
            sock, _ = fake.accept()
            with sock, Connection(os.dup(sock.fileno())) as line:
                line.send_bytes(b"#CHALLENGE#" + bytes(20))
                line.recv_bytes()
                line.send_bytes(b"#WELCOME#")
                with contextlib.suppress(EOFError, OSError):
                    heard.append(line.recv_bytes())
                    line.send_bytes(bytes(16))
                    while True:
                        heard.append(line.recv_bytes())

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        address = Address("127.0.0.1", fake.getsockname()[1], bytes(32))
        with pytest.raises(errors.UnavailableError, match="Server 7 cannot be reached"):
            ServerClient("Server 7", address, lambda: address, 30.0).call(("echo", "secret"))
        thread.join(30)
    assert heard[0].startswith(b"#CHALLENGE#")
    assert heard[1:] == [b"#FAILURE#"]


def test_server_without_a_thread_keeps_listening_and_the_caller_retries(server, monkeypatch):
    start, failed = threading.Thread.start, []

    def fail_once(thread):
        if thread.name == "hookline-serve" and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert caller(server).call(("echo", 1)).get() == (1,)
    assert len(failed) == 1


SERVER = """
import os, sys
from hookline.distributed.connections import Listener
listener = Listener(lambda message: os.getpid() if message[0] == "pid" else sys.stdin.read(), "127.0.0.1")
print(listener.address.port, listener.address.key.hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def processes():
    """Starts servers in processes of their own; returns the process and its address."""
    started = []

    def start():
        process = Python("-c", SERVER, stdin=subprocess.PIPE)
        started.append(process)
        port, key = process.stdout.readline().split()
        return process, Address("127.0.0.1", int(port), bytes.fromhex(key))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_server_killed_in_a_call_is_an_error_at_once_and_its_successor_is_found(processes):
    process, address = processes()
    where = [address]
    calls = ServerClient("Server 7", address, lambda: where[0], 600.0)
    assert calls.call(("pid",)).get() == process.pid
    asked = calls.call(("block",))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(errors.UnavailableError, match="Server 7 cannot be reached"):
        asked.get()
    with pytest.raises(errors.UnavailableError, match="Server 7 cannot be reached"):
        calls.call(("pid",)).get()

    successor, where[0] = processes()
    assert calls.call(("pid",)).get() == successor.pid


# Strangers, by the hundred --------------------------------------------------------------------------------------------


def held(pid):
    """The threads and the open files of a process."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


def ended(sock):
    """Returns whether the other side has ended a connection, after reading its earlier data."""
    sock.setblocking(False)
    try:
        while sock.recv(100):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")


@needs_proc
def test_unauthenticated_connections_hold_few_threads_and_files(processes):
    process, address = processes()
    threads, files = held(process.pid)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(address[:2], 30)) for _ in range(400)]
        # The last of them waits behind all others, and so does this one.
        assert ServerClient("Server 7", address, lambda: address, 30.0).call(("pid",)).get() == process.pid
        most = held(process.pid)
        assert sum(not ended(sock) for sock in strangers) <= MAX_UNAUTHENTICATED
    # One thread waits for the proof and one for the time that it may take; each waits on a handle of its own.
    assert most[0] - threads <= 2 * MAX_UNAUTHENTICATED + 4
    assert most[1] - files <= 2 * MAX_UNAUTHENTICATED + 4
    assert most[0] - threads > MAX_UNAUTHENTICATED / 2


@pytest.mark.campaign
@needs_proc
def test_members_connect_during_a_flood_of_unauthenticated_connections(processes):
    process, address = processes()
    before, most, over = held(process.pid), (0, 0), threading.Event()
    came = [0] * 4

    def flood(number):
        strangers = deque()
        while not over.is_set():
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection(address[:2], 1))
                came[number] += 1
            if len(strangers) > 100:
                strangers.popleft().close()
        for sock in strangers:
            sock.close()

    flooding = [threading.Thread(target=flood, args=(number,)) for number in range(len(came))]
    for thread in flooding:
        thread.start()
    try:
        for _ in range(5):
            member = ServerClient("Server 7", address, lambda: address, 30.0)
            assert member.call(("pid",)).get() == process.pid
            most = tuple(map(max, most, held(process.pid)))
    finally:
        over.set()
        for thread in flooding:
            thread.join()
    assert sum(came) > 4 * MAX_UNAUTHENTICATED
    # Threads and files that have just ended, or begun, are counted too.
    assert most[0] - before[0] <= 4 * MAX_UNAUTHENTICATED
    assert most[1] - before[1] <= 4 * MAX_UNAUTHENTICATED


def test_connection_beyond_the_limit_is_refused_and_logged_once(server, caplog, monkeypatch):
    monkeypatch.setattr("hookline.distributed.connections._HANDSHAKE_GRACE_SECS", 60.0)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(server.listener.address[:2], 30)) for _ in range(80)]
        for stranger in strangers[MAX_UNAUTHENTICATED:]:
            stranger.settimeout(30)
            assert stranger.recv(1) == b""
        assert not any(ended(stranger) for stranger in strangers[:MAX_UNAUTHENTICATED])
    assert caller(server).call(("echo", 1)).get() == (1,)
    (said,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert said == "A connection was refused: 64 other connections are not yet authenticated."


# Messages between servers --------------------------------------------------------------------------------------------


class Failures:
    """Records the failures that a link reports."""

    def __init__(self):
        self.came, self.all = threading.Event(), []

    def __call__(self, error):
        self.all.append(error)
        self.came.set()


def test_message_has_no_answer_and_its_failure_is_reported(server):
    links, failures = SocketPeerClient([server.listener.address]), Failures()
    for number in range(100):
        links.notify(0, "echo", number, on_failure=failures)
    links.notify(0, "op", on_failure=failures)
    assert failures.came.wait(30)
    assert [type(error) for error in failures.all] == [errors.AbortedError]
    assert [number for _, number in server.heard[:100]] == list(range(100))
    links.close()


def test_peer_client_is_pickled_as_addresses(server):
    links, failures = SocketPeerClient([server.listener.address]), Failures()
    links.notify(0, "echo", on_failure=failures)
    again = pickle.loads(pickle.dumps(links))
    again.notify(0, "op", on_failure=failures)
    assert failures.came.wait(30)
    links.close()
    again.close()


def test_killed_server_is_reported_to_its_peer_clients(processes):
    process, address = processes()
    links, failures = SocketPeerClient([address]), Failures()
    links.notify(0, "pid", on_failure=failures)
    os.kill(process.pid, signal.SIGKILL)
    assert failures.came.wait(30)
    assert "Parameter server 0 cannot be reached" in str(failures.all[0])

    after = Failures()
    SocketPeerClient([address]).notify(0, "pid", on_failure=after)
    assert "Parameter server 0 cannot be reached" in str(after.all[0])


def test_closed_peer_client_is_no_failure(server):
    links, failures = SocketPeerClient([server.listener.address]), Failures()
    links.notify(0, "echo", on_failure=failures)
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "hookline-link"]
    links.close()
    reader.join(30)
    assert not reader.is_alive()
    assert failures.all == []
