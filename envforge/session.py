"""A container on this terminal: create, attach, start, pass everything through, wait, remove.

Works on the engine's low-level client that docker_engine hands in; it imports no Docker itself. One thread:
the container's stream, this terminal and the signals are waited for together.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from envforge.passthrough import Passthrough

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_KILL_AFTER = 3  # so many Ctrl-C end a container that ignores them


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A folder of this machine inside the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """What to start. ``user`` is ``uid:gid``; ``ports`` are (host address, host port, container port)."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    workdir: str = "/work"
    user: str | None = None
    groups: tuple[str, ...] = ()
    userns: str | None = None
    ports: tuple[tuple[str, int, int], ...] = ()
    shm_bytes: int | None = None
    host_ipc: bool = False
    ulimits: tuple[tuple[str, int, int], ...] = ()
    passthrough: Passthrough | None = None
    tty: bool = False
    network: bool = True
    init: bool = True


def create(
    api: Any, image: str, session: Session, device_request: Callable[..., Any], labels: Mapping[str, str]
) -> str:
    """The container's id. ``device_request`` and the port syntax are the SDK's."""
    binds = [f"{row.source}:{row.target}{':ro' if row.read_only else ''}" for row in session.mounts]
    host: dict[str, Any] = {"binds": binds, "init": session.init}
    if not session.network:
        host["network_mode"] = "none"
    if session.shm_bytes is not None and not session.host_ipc:
        host["shm_size"] = session.shm_bytes
    if session.host_ipc:
        host["ipc_mode"] = "host"
    if session.groups:
        host["group_add"] = list(session.groups)
    if session.ports:
        host["port_bindings"] = {inside: (address, outside) for address, outside, inside in session.ports}
    gpu = session.passthrough
    if gpu is not None and gpu.device_requests:
        host["device_requests"] = [device_request(**dict(row)) for row in gpu.device_requests]
    if gpu is not None and gpu.devices:
        host["devices"] = list(gpu.devices)
    config = api.create_host_config(**host)
    # The SDK's record turns an unlimited value into nothing; the engine's own field takes it.
    config["Ulimits"] = [{"Name": name, "Soft": soft, "Hard": hard} for name, soft, hard in session.ulimits]
    if session.userns:
        config["UsernsMode"] = session.userns
    body = api.create_container_config(
        image,
        list(session.argv[1:]),
        entrypoint=[session.argv[0]],
        environment=dict(session.env),
        user=session.user,
        working_dir=session.workdir,
        tty=session.tty,
        stdin_open=True,
        ports=[inside for _, _, inside in session.ports],
        labels=dict(labels),
        host_config=config,
    )
    body["StdinOnce"] = True
    body["AttachStdin"] = True
    return str(api.create_container_from_config(body, f"envforge-run-{uuid.uuid4().hex[:12]}")["Id"])


def follow(api: Any, container: str, *, tty: bool, out: IO[bytes], err: IO[bytes], stdin: int | None) -> int:
    """Attach, start and stay until the command ends; its exit code. ``stdin``: a file descriptor, or None."""
    query = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    stream = api.attach_socket(container, params=query)
    sock = getattr(stream, "_sock", stream)
    with _signals() as wake, _terminal(stdin if tty else None):
        api.start(container)
        if tty:
            _resize(api, container)
        _pump(api, container, sock, wake, tty=tty, out=out, err=err, stdin=stdin)
    stream.close()
    return int(api.wait(container, timeout=None)["StatusCode"])


def _pump(
    api: Any, container: str, sock: Any, wake: int, *, tty: bool, out: IO[bytes], err: IO[bytes], stdin: int | None
) -> None:
    pending = b""
    interrupts = 0
    readers: list[Any] = [sock, wake]
    if stdin is None:
        _end_of_input(sock)
    else:
        readers.append(stdin)
    while True:
        ready, _, _ = select.select(readers, [], [])
        if wake in ready:
            for number in os.read(wake, 512):
                interrupts += number == signal.SIGINT
                _signal(api, container, number, interrupts)
        if stdin in ready and stdin is not None:
            data = os.read(stdin, 65536)
            if data:
                with suppress(OSError):  # the command has closed its input
                    sock.sendall(data)
            else:
                readers.remove(stdin)
                _end_of_input(sock)
        if sock in ready:
            data = sock.recv(65536)
            if not data:
                return
            if tty:
                out.write(data)
                out.flush()
            else:
                pending = _frames(pending + data, out, err)


def _frames(data: bytes, out: IO[bytes], err: IO[bytes]) -> bytes:
    """Write every whole frame (8 bytes of head: stream and length) and return the rest."""
    while len(data) >= 8:
        size = int.from_bytes(data[4:8], "big")
        if len(data) < 8 + size:
            break
        target = err if data[0] == 2 else out
        target.write(data[8 : 8 + size])
        target.flush()
        data = data[8 + size :]
    return data


def _end_of_input(sock: Any) -> None:
    """Tell the command that no more input comes; TLS sockets cannot close one half."""
    with suppress(OSError, AttributeError):
        sock.shutdown(1)


def _signal(api: Any, container: str, number: int, interrupts: int) -> None:
    if number == getattr(signal, "SIGWINCH", -1):
        _resize(api, container)
        return
    name = "SIGKILL" if number == signal.SIGINT and interrupts >= _KILL_AFTER else signal.Signals(number).name
    with suppress(Exception):  # it may have ended meanwhile
        api.kill(container, name)


def _resize(api: Any, container: str) -> None:
    with suppress(Exception):
        size = os.get_terminal_size(sys.stdout.fileno())
        api.resize(container, height=size.lines, width=size.columns)


@contextmanager
def _signals() -> Iterator[int]:
    """A file descriptor that yields the number of each signal meant for the command."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    numbers = [getattr(signal, name) for name in (*FORWARDED, "SIGWINCH") if hasattr(signal, name)]

    def heard(number: int, _frame: Any) -> None:
        with suppress(BlockingIOError):
            os.write(writer, bytes([number]))

    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextmanager
def _terminal(stdin: int | None) -> Iterator[None]:
    """This terminal in raw mode, so that every key reaches the command; put back whatever happens."""
    if stdin is None:
        yield
        return
    import termios
    import tty

    saved = termios.tcgetattr(stdin)
    tty.setraw(stdin)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, saved)
