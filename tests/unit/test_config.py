"""Settings: which file is in force, every mistake at once, and what the building host adds to a build."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from envforge import build_context, config
from envforge.build_context import (
    declared_args,
    default_index,
    from_images,
    host_inputs,
    proxies,
    reaches_loopback,
    write_tar,
)
from envforge.config import Config
from envforge.engine import BuildOptions
from envforge.errors import SpecError, UsageError
from envforge.plan import Rendered

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_no_file_gives_the_defaults(tmp_path: Path) -> None:
    assert config.load({"HOME": str(tmp_path)}, tmp_path) == Config()


def test_the_named_file_wins_over_project_and_user(tmp_path: Path) -> None:
    user = tmp_path / ".config" / "envforge" / "config.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("engine: local\n", encoding="utf-8")
    environ = {"HOME": str(tmp_path)}
    assert config.load(environ, tmp_path).engine == "local"
    (tmp_path / config.PROJECT_FILE).write_text("engine: docker\n", encoding="utf-8")
    assert config.load(environ, tmp_path).engine == "docker"
    named = tmp_path / "named.yaml"
    named.write_text("schema: 1\nregistries: {docker.io: registry.lab/hub}\n", encoding="utf-8")
    found = config.load({**environ, "ENVFORGE_CONFIG": str(named)}, tmp_path)
    assert found.registries == {"docker.io": "registry.lab/hub"} and found.engine == "auto"
    assert found.path == str(named)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        config.load({"ENVFORGE_CONFIG": str(tmp_path / "absent.yaml")}, tmp_path)
    assert caught.value.reference == "config-missing" and caught.value.exit_code == 3


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / config.PROJECT_FILE
    file.write_text("regitries: {a: b}\nengine: podman\nca_bundle: [x]\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        config.load({"HOME": str(tmp_path)}, tmp_path)
    text = "\n".join(caught.value.context) + caught.value.message
    assert "registries" in text and "engine" in text and "ca_bundle" in text
    file.write_text(
        "registries: {docker.io: 'https://x'}\ndefault_index: x\nindexes: {A B: 'http://x'}\n", encoding="utf-8"
    )
    with pytest.raises(SpecError) as caught:
        config.load({"HOME": str(tmp_path)}, tmp_path)
    assert len(caught.value.context) == 3


def test_the_ca_bundle_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / config.PROJECT_FILE).write_text("ca_bundle: certs/lab.pem\n", encoding="utf-8")
    found = config.load({"HOME": str(tmp_path)}, tmp_path)
    assert found.ca_bundle_path() == tmp_path / "certs" / "lab.pem"


# -- what the host adds --------------------------------------------------------------------------------


def test_the_bundle_comes_from_option_config_then_environment(tmp_path: Path) -> None:
    files = {}
    for name in ("option", "config", "environment"):
        files[name] = tmp_path / f"{name}.pem"
        files[name].write_text(f"{name}\n{PEM}", encoding="utf-8")
    settings = Config(ca_bundle=str(files["config"]))
    environ = {"PIP_CERT": str(files["environment"])}
    options = BuildOptions(ca_bundle=files["option"])
    assert host_inputs(options, settings, environ).ca_bundle.startswith(b"option")
    assert host_inputs(BuildOptions(), settings, environ).ca_bundle.startswith(b"config")
    assert host_inputs(BuildOptions(), Config(), environ).ca_bundle.startswith(b"environment")
    assert host_inputs(BuildOptions(), Config(), {}).ca_bundle == b""


def test_a_bundle_asked_for_must_be_one(tmp_path: Path) -> None:
    wrong = tmp_path / "x.pem"
    for make in (lambda: None, lambda: wrong.write_text("no certificate")):
        make()
        with pytest.raises(UsageError) as caught:
            host_inputs(BuildOptions(ca_bundle=wrong), Config(), {})
        assert caught.value.reference == "ca-bundle"
        assert host_inputs(BuildOptions(), Config(), {"SSL_CERT_FILE": str(wrong)}).ca_bundle == b""


def test_the_default_index_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"HOME": str(tmp_path)}
    real = Path.read_text

    def only_here(self: Path, *args: str, **kwargs: str) -> str:
        if str(self).startswith("/etc/"):
            raise FileNotFoundError(self)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", only_here)
    assert default_index(home) is None
    pip = tmp_path / ".config" / "pip" / "pip.conf"
    pip.parent.mkdir(parents=True)
    pip.write_text("[global]\nindex-url = https://pip.example/simple\n", encoding="utf-8")
    assert default_index(home) == "https://pip.example/simple"
    uv = tmp_path / ".config" / "uv" / "uv.toml"
    uv.parent.mkdir(parents=True)
    uv.write_text('[[index]]\nurl = "https://other.example"\n[[index]]\nurl = "https://uv.example"\ndefault = true\n')
    assert default_index(home) == "https://uv.example"
    assert default_index({**home, "PIP_INDEX_URL": "https://env.example"}) == "https://env.example"


def test_proxies_are_given_in_both_spellings() -> None:
    assert proxies({"https_proxy": "http://p:1", "no_proxy": "x", "PATH": "y"}) == {
        "HTTPS_PROXY": "http://p:1",
        "https_proxy": "http://p:1",
        "NO_PROXY": "x",
        "no_proxy": "x",
    }


def test_secrets_are_known_for_masking() -> None:
    options = BuildOptions(index_url="https://u:s3cret@i.example/simple", environment={"HTTP_PROXY": "http://a:b2@p:1"})
    found = host_inputs(options, Config(indexes={"lab": "https://x:y3@l.example"}), {})
    assert set(found.secrets) == {"s3cret", "b2", "y3"}
    assert found.files()["build/index-url"] == b"https://u:s3cret@i.example/simple"
    assert found.files()["build/index-url.lab"] == b"https://x:y3@l.example"


def test_loopback_indexes_need_the_hosts_network() -> None:
    assert reaches_loopback(["https://x.example", "http://127.0.0.1:8000/simple"])
    assert reaches_loopback(["http://localhost/"])
    assert not reaches_loopback(["https://localhost.example/simple", ""])


def test_images_of_a_dockerfile() -> None:
    text = (
        "FROM a:1 AS base\nFROM --platform=linux/amd64 b@sha256:0 as tools\nFROM base\nFROM scratch\n"
        "COPY --from=tools /x /x\nCOPY --from=c:2 /y /y\nCOPY --from=0 /z /z\n# FROM no:1\nRUN echo FROM no:2\n"
    )
    assert from_images(text) == ("a:1", "b@sha256:0", "c:2")
    assert declared_args("ARG A\n arg B=1\nRUN ARG C\n# ARG D\n") == {"A", "B"}


def test_the_context_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    rendered = Rendered(dockerfile="FROM x\n", files={"b": b"2", "a": b"1", "build/ca.pem": b""})
    extra = build_context.HostInputs(ca_bundle=b"pem").files()
    (tmp_path / "w.whl").write_bytes(b"wheel")
    one, two = io.BytesIO(), io.BytesIO()
    write_tar(rendered, extra, tmp_path, one)
    write_tar(Rendered(dockerfile="FROM x\n", files=dict(reversed(rendered.files.items()))), extra, tmp_path, two)
    assert one.getvalue() == two.getvalue()
    one.seek(0)
    with tarfile.open(fileobj=one) as archive:
        members = {member.name: member for member in archive}
        assert all((m.mtime, m.mode, m.uid) == (0, 0o644, 0) for m in members.values())
        stream = archive.extractfile("build/ca.pem")
        assert stream is not None and stream.read() == b"pem"
    assert {"Dockerfile", "a", "b", "build/index-url", "build/offline/w.whl"} <= set(members)
