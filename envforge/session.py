"""A container on this terminal: create, attach, start, pass everything through, wait, remove.

Works on the calls of direct_engine or docker_engine; it imports no Docker itself. One thread: the container's
stream, this terminal and the signals are waited for together.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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


def body(image: str, session: Session, labels: Mapping[str, str]) -> dict[str, Any]:
    """The request of the Engine API that creates the container (POST /containers/create)."""
    host: dict[str, Any] = {
        "Binds": [f"{row.source}:{row.target}{':ro' if row.read_only else ''}" for row in session.mounts],
        "Init": session.init,
        "Ulimits": [{"Name": name, "Soft": soft, "Hard": hard} for name, soft, hard in session.ulimits],
        "GroupAdd": list(session.groups),
        "PortBindings": {
            f"{inside}/tcp": [{"HostIp": address, "HostPort": str(outside)}]
            for address, outside, inside in session.ports
        },
    }
    if not session.network:
        host["NetworkMode"] = "none"
    if session.host_ipc:
        host["IpcMode"] = "host"
    elif session.shm_bytes is not None:
        host["ShmSize"] = session.shm_bytes
    if session.userns:
        host["UsernsMode"] = session.userns
    gpu = session.passthrough
    if gpu is not None:
        host["DeviceRequests"] = [_device_request(row) for row in gpu.device_requests]
        host["Devices"] = [
            {"PathOnHost": name, "PathInContainer": name, "CgroupPermissions": "rwm"} for name in gpu.devices
        ]
    return {
        "Image": image,
        "Entrypoint": [session.argv[0]],
        "Cmd": list(session.argv[1:]),
        "Env": [f"{name}={value}" for name, value in session.env.items()],
        "User": session.user or "",
        "WorkingDir": session.workdir,
        "Tty": session.tty,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "ExposedPorts": {f"{inside}/tcp": {} for _, _, inside in session.ports},
        "Labels": dict(labels),
        "HostConfig": host,
    }


def _device_request(row: Mapping[str, Any]) -> dict[str, Any]:
    """The SDK's keyword arguments as the Engine API spells them; a key that is not known is a fault here."""
    names = {"driver": "Driver", "count": "Count", "device_ids": "DeviceIDs", "capabilities": "Capabilities"}
    return {names[key]: value for key, value in row.items()}


def attach(calls: Any, image: str, session: Session, out: IO[bytes], *, discard: Callable[[str], None]) -> int:
    """Create, follow and remove one container; the command's exit code. ``discard`` is called whatever happened."""
    labels = {"envforge.run": "session", "envforge.run-owner": f"{socket.gethostname()}:{os.getpid()}"}
    name = f"envforge-run-{uuid.uuid4().hex[:12]}"
    stdin = sys.stdin.fileno() if sys.stdin and not sys.stdin.closed else None
    try:
        container = calls.create(name, body(image, session, labels))
        return follow(calls, container, tty=session.tty, out=out, err=sys.stderr.buffer, stdin=stdin)
    except Exception as error:
        less = _less(session, "\n".join([str(error), *getattr(error, "context", ())]))
        if less is None:
            raise
    finally:
        discard(name)
    return attach(calls, image, less, out, discard=discard)


def _less(session: Session, said: str) -> Session | None:
    """The session without a help that this engine cannot give; None when the error is about something else."""
    if session.ulimits and "rlimit" in said:
        return replace(session, ulimits=())  # an engine inside a container may not raise limits
    if session.init and re.search(r"docker-init|container-init|catatonit", said):
        return replace(session, init=False)  # the engine's init program is a package of its own
    return None


def follow(api: Any, container: str, *, tty: bool, out: IO[bytes], err: IO[bytes], stdin: int | None) -> int:
    """Attach, start and stay until the command ends; its exit code. ``stdin``: a file descriptor, or None."""
    sock = api.attach_socket(container)
    with _signals() as wake, _terminal(stdin if tty else None):
        api.start(container)
        if tty:
            _resize(api, container)
        _pump(api, container, sock, wake, tty=tty, out=out, err=err, stdin=stdin)
    sock.close()
    return int(api.wait(container))


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
