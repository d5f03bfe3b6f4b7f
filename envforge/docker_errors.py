"""What an engine's error answer means to a person. Pure: works on status code and text, knows no SDK class."""

from __future__ import annotations

import re

from envforge.errors import EngineError, EnvforgeError, GpuUnavailable, NetworkError

_MAPPING = "map the registry or the image to another one in the config file (`registries`, `bases`)"

_DISK = r"(?i)no space left on device|disk quota exceeded"
_LOST = (
    r"(?i)connection (?:aborted|refused|reset)|remote end closed|broken pipe|No such file or directory: .*sock"
    r"|FileNotFoundError|Max retries exceeded|IncompleteRead|InvalidChunkLength|Read timed out|Connection broken"
    r"|server closed|transport is closing|EOF$"
)
_GPU = r"(?i)nvidia\.com/gpu|could not select device driver|CDI dev|nvidia-container-cli|invalid runtime name: nvidia"
_DENIED = r"(?i)pull access denied|unauthorized|authentication required|denied:|forbidden|no basic auth credentials"
_ABSENT = r"(?i)manifest (?:for \S+ )?(?:unknown|not found)|repository \S+ not found|name unknown|: not found$"
_LIMIT = r"(?i)toomanyrequests|too many requests|rate limit"
_UNREACHABLE = (
    r"(?i)no such host|i/o timeout|dial tcp|connection refused|network is unreachable|TLS handshake timeout|x509:"
    r"|request canceled|server misbehaving|context deadline exceeded|proxyconnect|EOF|unexpected status code"
    r"|pinging container registry|Client\.Timeout|lookup \S+ on"
)


def bootstrap_hint(python: str | None = None) -> str:
    """The way out when no registry can be reached."""
    version = f" --python {python}" if python else ""
    return f"make a base from Debian packages: envforge base bootstrap{version}; or {_MAPPING}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no explanation"])[0][:400]


def pull_failure(image: str, text: str) -> EnvforgeError:
    """Why an image could not be pulled: refused, not there, rate limited, or the registry is out of reach."""
    detail = (_first_line(text),)
    if re.search(_DISK, text):
        return disk_full(f"while pulling {image}", text)
    if re.search(_LIMIT, text):
        return NetworkError(
            "registry-refused",
            f"the registry's limit for pulls is used up, {image} was not delivered",
            context=detail,
            hint="log in to the registry (docker login), or " + bootstrap_hint(),
        )
    if re.search(_UNREACHABLE, text):
        return NetworkError(
            "registry-unreachable",
            f"the registry of {image} cannot be reached by the engine",
            context=detail,
            hint=bootstrap_hint(),
        )
    if re.search(_DENIED, text):
        return NetworkError(
            "registry-refused",
            f"the registry refuses {image}: it does not exist there or needs a login",
            context=detail,
            hint="check the name; for a private image log in first (docker login); or " + bootstrap_hint(),
        )
    if re.search(_ABSENT, text) or "404" in text:
        return NetworkError(
            "image-not-found",
            f"the registry has no image {image}",
            context=detail,
            hint="check the tag; or " + bootstrap_hint(),
        )
    return NetworkError("registry-refused", f"{image} could not be pulled", context=detail, hint=bootstrap_hint())


def disk_full(doing: str, text: str = "") -> EngineError:
    """The one message for a full disk."""
    return EngineError(
        "disk-full",
        f"the engine's disk is full ({doing})",
        context=(_first_line(text),) if text else (),
        hint="see what can go with: envforge clean; Docker's build cache: docker builder prune",
    )


def gpu_failure(text: str) -> GpuUnavailable:
    """The engine cannot hand a GPU to a container; the cause as far as its own words tell it."""
    from envforge import passthrough

    cdi = re.search(r"(?i)CDI dev|nvidia\.com/gpu", text) is not None
    return passthrough.unavailable(passthrough.name_cause(text, None, cdi=cdi), text)


def no_engine(where: str, text: str) -> EngineError:
    """Nobody answers at the engine's address."""
    if re.search(r"(?i)permission denied", text):
        hint = "add your user to the group that owns the socket (often `docker`), or use --engine local"
        return EngineError("no-engine", f"the engine at {where} refuses this user: permission denied", hint=hint)
    return EngineError(
        "no-engine",
        f"no Docker engine answers at {where}",
        context=(_first_line(text),) if text else (),
        hint="start Docker or Podman (podman system service), set DOCKER_HOST, or use --engine local",
    )


def engine_lost(doing: str, text: str = "") -> EngineError:
    """The engine answered before and does not any more."""
    return EngineError(
        "engine-lost",
        f"the engine went away ({doing})",
        context=(_first_line(text),) if text else (),
        hint="see whether it still runs (docker info) and start again: finished steps are kept",
    )


def engine_failure(status: int | None, text: str, doing: str) -> EnvforgeError:
    """Any other answer. ``status``: HTTP code, None when no answer came; ``doing``: "creating a container"."""
    if re.search(_DISK, text):
        return disk_full(doing, text)
    if re.search(_GPU, text):
        return gpu_failure(text)
    if status is None and re.search(_LOST, text):
        return engine_lost(doing, text)
    if status == 404 and re.search(
        r"(?i)no such image|image (?:not known|not found)|no such object|failed to find image", text
    ):
        return EngineError(
            "image-not-found",
            f"the engine has no such image ({doing})",
            context=(_first_line(text),),
            hint="see what is there: envforge inspect, docker images",
        )
    if status == 409 and re.search(r"(?i)in use|being used|conflict|already", text):
        return EngineError("engine-conflict", f"something still uses it ({doing})", context=(_first_line(text),))
    if re.search(r"(?i)executable file not found|no such file or directory: unknown", text):
        return EngineError(
            "command-not-found", f"the command does not exist in the image ({doing})", context=(_first_line(text),)
        )
    return EngineError("engine-error", f"the engine refused ({doing})", context=(_first_line(text),))
