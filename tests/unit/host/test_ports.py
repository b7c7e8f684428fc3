"""Ports: free, taken, and by whom."""

import os
import socket
import subprocess
import sys

from lib.host.ports import engine_host, free, listener_pids, listeners, parse_sockets, read_sockets, sockets_of

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 20 4 30 10 -1
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue tr
   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 0 0 0 99 1
   1: 0000000000000000FFFF00000B00007F:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 0 0 0 98 1
garbage
"""


def test_the_kernels_tables_are_read() -> None:
    first, second, third = parse_sockets(TCP)
    assert (first.address, first.port, first.listening, first.inode) == ("127.0.0.1", 8080, True, 4711)
    assert (second.address, third.listening) == ("0.0.0.0", False)
    assert [(entry.address, entry.port) for entry in parse_sockets(TCP6)] == [("::", 80), ("127.0.0.11", 81)]


def test_the_exact_address_answers_before_a_wildcard() -> None:
    sockets = parse_sockets(TCP)
    assert listeners(sockets, "127.0.0.1", 8080) == {4711}
    assert listeners(sockets, "127.0.0.2", 8080) == {4712}
    assert listeners(sockets, "127.0.0.1", 40000) == frozenset()


def test_a_port_that_nobody_has_is_free_and_stays_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert free("127.0.0.1", port) == ""
    assert free("127.0.0.1", port) == ""


def test_a_taken_port_names_the_process_and_its_command() -> None:
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n" \
           "time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            port = int(holder.stdout.readline())
            assert f"port {port} on 127.0.0.1 is taken by process {holder.pid} (" in free("127.0.0.1", port)
            assert str(holder.pid) in free("0.0.0.0", port)
            assert listener_pids("127.0.0.1", port) == {holder.pid}
        finally:
            holder.kill()


def test_a_port_that_is_bound_without_listening_is_taken_too() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert "bound it without listening" in free("127.0.0.1", holder.getsockname()[1])


def test_an_outgoing_connection_can_hold_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert f"process {os.getpid()} (" in free("127.0.0.1", client.getsockname()[1])


def test_an_address_of_another_machine_is_said_to_be_that() -> None:
    assert free("192.0.2.1", 20000) == "192.0.2.1 is not an address of this machine"


def test_our_own_sockets_are_seen_as_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listeners(read_sockets(), *server.getsockname()) <= sockets_of(os.getpid())


def test_the_engine_never_shares_its_guards_address() -> None:
    for guard, engine in (("10.0.0.144", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("127.0.0.11", "127.0.0.1")):
        assert engine_host(guard) == engine
