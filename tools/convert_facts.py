"""Makes the compatibility tables (envforge/data/*.yaml) from a folder of collected facts.

usage: python tools/convert_facts.py FACTS_FOLDER [--out envforge/data]

Run once per facts folder; the tables are then kept by hand or by the updaters. Files that hold hand-written
knowledge (rules.yaml) are never touched. Every row gets ``source`` and ``checked``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]

GLIBC_OF_TAG = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
PLATFORM_OF_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


def load(folder: Path, name: str) -> dict[str, Any]:
    """One facts file."""
    with (folder / f"{name}.yaml").open(encoding="utf-8") as stream:
        found = yaml.load(stream, Loader=yaml.CSafeLoader)
    assert isinstance(found, dict)
    return found


def sources(value: Any) -> list[str]:
    """A source field as a list of strings."""
    if value is None:
        return []
    return [str(value)] if isinstance(value, str) else [str(item) for item in value]


def pythons(tags: Iterable[str]) -> list[str]:
    """``cp311`` -> ``3.11``; free-threaded builds are left out; ``cp312 and newer (abi3)`` runs to the newest."""
    found: list[str] = []
    for tag in tags:
        match = re.fullmatch(r"cp3(\d+)( and newer \(abi3\))?", tag)
        if match is None:
            continue
        first = int(match[1])
        found += [f"3.{minor}" for minor in range(first, (15 if match[2] else first) + 1)]
    return sorted(set(found), key=lambda text: int(text.split(".")[1]))


def glibc(tags: Iterable[str]) -> dict[str, str]:
    """The lowest glibc a wheel set asks for, per platform."""
    found: dict[str, str] = {}
    for tag in tags:
        match = re.fullmatch(r"(manylinux\w*?)_(x86_64|aarch64)", tag)
        if match is None:
            continue
        numbers = re.fullmatch(r"manylinux_(\d+)_(\d+)", match[1])
        version = f"{numbers[1]}.{numbers[2]}" if numbers else GLIBC_OF_TAG[match[1]]
        platform = PLATFORM_OF_ARCH[match[2]]
        if platform not in found or key(version) < key(found[platform]):
            found[platform] = version
    return found


def key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for sorting."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def tag_of(cuda: str) -> str:
    """``12.4`` -> ``cu124``."""
    major, minor = cuda.split(".")[:2]
    return f"cu{major}{minor}"


def cuda_of(tag: str) -> str:
    """``cu124`` -> ``12.4``; ``cu92`` -> ``9.2``."""
    digits = tag.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}"


def bounds(value: Any, name: str) -> list[str]:
    """Metadata bounds as ``SPEC`` or ``SPEC ; python_version …`` strings without the package name."""
    found = []
    for text in sources(value):
        body = re.sub(r"\s+", "", text.split(";")[0])
        body = re.sub(rf"^{re.escape(name)}", "", body, flags=re.IGNORECASE)
        body = body.replace("dev", ".dev0") if body.endswith("dev") else body
        if body in ("", "any"):
            continue
        marker = re.search(r"python_version\s*([<>=]+)\s*\"([\d.]+)\"", text)
        found.append(f"{body} ; python {marker[1]} {marker[2]}" if marker else body)
    return found


class Maker:
    """Builds every table of one facts folder; ``checked`` is the date the facts were collected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checked = ""

    def facts(self, name: str) -> dict[str, Any]:
        found = load(self.folder, name)
        self.checked = str(found["_meta"]["collected"])
        return found

    def row(self, source: Any, **fields: Any) -> Row:
        """A row without its empty fields, with source and date."""
        kept = {name: value for name, value in fields.items() if value not in (None, [], {}, ())}
        return {**kept, "source": sources(source) or ["facts collection"], "checked": self.checked}

    # -- CUDA, drivers, GPUs ------------------------------------------------------------------------------
    def cuda(self) -> dict[str, list[Row]]:
        facts = self.facts("cuda")
        toolkits = []
        for item in facts["toolkits"]:
            driver = str(item.get("toolkit_driver_linux_x86_64") or "")
            note = item.get("note")
            if not re.fullmatch(r"[\d.]+", driver):
                branch = item.get("matching_driver_branch") or item.get("dev_driver_linux")
                driver = str(branch or "")
                note = note or "driver known by its branch only"
            toolkits.append(
                self.row(
                    item["source"],
                    release=item["release"],
                    series=item["series"],
                    preview=True if "Preview" in item["label"] else None,
                    driver=driver,
                    floor=item["minor_compat_min_driver_linux"],
                    sm_min=item["compute_capability_min"],
                    sm_max=str(item["compute_capability_max"]).split()[0],
                    confidence=item.get("confidence"),
                    note=note,
                )
            )
        branches = [
            self.row(
                item["source"],
                branch=item["branch"],
                cuda=item["nvidia_smi_cuda"],
                kind=item["kind"],
                end_of_life=item["end_of_life"],
                confidence=item.get("confidence"),
                note=item.get("note"),
            )
            for item in facts["driver_branches"]
        ]
        architectures = []
        for item in facts["architectures"]:
            last = re.match(r"R(\d+)", str(item["last_driver_branch"]))
            architectures.append(
                self.row(
                    item["source"],
                    architecture=item["architecture"],
                    capabilities=item["compute_capabilities"],
                    first_cuda=str(item["first_toolkit"]).split()[0],
                    last_driver=last[1] if last else None,
                    confidence=item.get("confidence"),
                )
            )
        return {"toolkits": toolkits, "drivers": branches, "architectures": architectures}

    def gpus(self) -> dict[str, list[Row]]:
        classes = {"data center": "datacenter"}
        arm = re.compile(r"^(Jetson|NVIDIA (GH|GB)\d+)")
        return {
            "gpus": [
                self.row(
                    item["source"],
                    name=item["name"],
                    capability=item["compute_capability"],
                    architecture=item["architecture"],
                    kind=classes.get(item["class"], item["class"]),
                    first_cuda=item["first_cuda"],
                    platform="arm64" if arm.match(item["name"]) else None,
                    confidence=item.get("confidence"),
                    note=item.get("note"),
                )
                for item in self.facts("gpus")["gpus"]
            ]
        }

    # -- PyTorch ------------------------------------------------------------------------------------------
    def torch(self) -> dict[str, list[Row]]:
        facts = self.facts("torch")
        hashes = load(self.folder, "wheel_hashes")
        seen: dict[tuple[str, str], set[str]] = {}
        for wheel in hashes["wheels"]:
            if wheel["project"] == "torch" and "+" in wheel["version"]:
                version, label = wheel["version"].split("+")
                seen.setdefault((version, label), set()).add(PLATFORM_OF_ARCH[wheel["arch"]])
        pins = {item["torch"]: item for item in hashes["requires_dist"]}
        return {"releases": [self._torch_release(item, seen, pins) for item in facts["releases"]]}

    def _torch_release(self, item: Row, seen: Mapping[tuple[str, str], set[str]], pins: Mapping[str, Row]) -> Row:
        version = item["version"]
        default = ".".join(re.findall(r"\d+", str(item["pypi_default_cuda"]))[:2])
        labels = [label.split()[0] for label in item.get("cuda_variants") or [tag_of(default)]]
        if version == "1.8.0":
            labels = [label for label in labels if label != "cu101"]
        labels += [label for (number, label) in seen if number == version]
        if tag_of(default) not in labels:
            labels.append(tag_of(default))
        builds = []
        for label in sorted({label for label in labels if label != "cpu"}, key=key):
            builds.append(self._torch_build(item, label, default, seen, pins))
        # From 2.11 the default index carries CUDA wheels for arm64 too; before that they are CPU only.
        arm = default if key(version) >= key("2.11") else "cpu"
        tags = glibc(item["pypi_linux_tags"])
        return self.row(
            item["source"],
            version=version,
            released=item.get("released"),
            python=pythons(item["python_wheels"]),
            glibc=tags,
            default={name: (default if name == "amd64" else arm) for name in tags},
            builds=builds,
            torchvision=[text.split()[0] for text in item["torchvision"]],
            torchaudio=[text.split()[0] for text in item["torchaudio"]],
            loose=[name for name in ("torchvision", "torchaudio") if any(" (" in text for text in item[name])],
            triton=re.sub(r"^triton\s*", "", item["triton"]["spec"]) if item.get("triton") else None,
            setuptools=bounds([t for t in item["other_requires"] if t.startswith("setuptools")], "setuptools"),
            numpy=["<2"] if key(version) < key("2.3") else None,
            note=item.get("note"),
        )

    def _torch_build(
        self,
        item: Row,
        label: str,
        default: str,
        seen: Mapping[tuple[str, str], set[str]],
        pins: Mapping[str, Row],
    ) -> Row:
        version, cuda = item["version"], cuda_of(label)
        text = None
        for pattern, value in (item.get("compute_capabilities") or {}).items():
            name = pattern.split()[0]
            if (
                name == label
                or (name == "cu10x" and key(cuda) < (11, 0) and key(cuda) >= (10, 0))
                or ("later 11.x" in pattern and (11, 1) <= key(cuda) < (12, 0))
            ):
                text = value
        kernels, ptx = self._kernels(text)
        from_metadata = item.get("nvidia_pins") if cuda == default else None
        listed = pins.get(f"{version}+{label}")
        needs = {name: re.sub(r"^==", "", spec) for name, spec in (from_metadata or {}).items()}
        if listed is not None:
            needs = {name: str(spec) for name, spec in listed["pins"].items() if name != "triton"}
        low = "kernels" if "compute_capabilities" in str(item.get("confidence")) or text is None else None
        platforms = {"amd64"} | set(seen.get((version, label), set()))
        if cuda == default and key(version) >= key("2.11"):
            platforms.add("arm64")
        cudnn = (item.get("cudnn") or {}).get(label)
        pinned = [spec for name, spec in needs.items() if name.startswith("nvidia-cudnn-")]
        if cudnn is None and cuda == default and item.get("pypi_cudnn"):
            cudnn = item["pypi_cudnn"].split("==")[1]
        if cudnn is not None:
            # Where sources disagree, what the wheel itself pins is right.
            cudnn = pinned[0] if pinned else re.findall(r"\d+(?:\.\d+)+", cudnn)[-1]
        if cudnn is not None and not needs and key(version) >= key("2.2") and f"{version}+{label}" != "2.6.0+cu126":
            # From 2.2 on every CUDA wheel pins its libraries exactly; where the list is not known, cuDNN's pin is.
            needs = {f"nvidia-cudnn-cu{cuda.split('.')[0]}": cudnn}
        flat = key(version) < key("1.11")
        build: Row = {
            "cuda": cuda,
            "index": "default" if cuda == default else ("pytorch-stable" if flat else f"pytorch-{label}"),
            "vendor_index": "pytorch-stable" if flat else f"pytorch-{label}",
            "platforms": sorted(platforms),
            "cudnn": cudnn,
            "kernels": kernels,
            "ptx": ptx,
            "low": low,
            "pins": needs,
        }
        if version == "2.6.0" and label == "cu126":
            build["glibc"] = "2.28"
            build["broken"] = (
                "the wheel's metadata lists none of the nvidia-*-cu12 packages it needs, so the import fails "
                "(libcusparseLt.so.0) unless they are added or the base image supplies CUDA and cuDNN"
            )
        return {name: value for name, value in build.items() if value not in (None, [], {})}

    @staticmethod
    def _kernels(text: str | None) -> tuple[list[str], list[str]]:
        if text is None:
            return [], []
        parts = text.split(" (")[0].split(";")
        kernels = [part.removesuffix("+PTX") for part in parts]
        return kernels, [part.removesuffix("+PTX") for part in parts if part.endswith("+PTX")]

    # -- TensorFlow ---------------------------------------------------------------------------------------
    def tensorflow(self) -> dict[str, list[Row]]:
        # Kernel lists come from the build configuration of each line (.bazelrc release settings), not from
        # opened wheels, so they are marked low. compute_XY in those settings embeds code and PTX.
        lists = (
            ("2.18", ["6.0", "7.0", "8.0", "8.9", "9.0"], ["9.0"]),
            ("2.12", ["6.0", "7.0", "8.0"], ["8.0"]),
            ("2.4", ["3.5", "5.0", "6.0", "7.0", "7.5", "8.0"], ["8.0"]),
        )
        rows = []
        for item in self.facts("tensorflow")["releases"]:
            version, tested = item["version"], item["tested"]
            cuda = str(tested["cuda"])
            extra = list(item.get("and_cuda") or [])
            ranged = any("<" in text for text in extra)
            found = next(((k, p) for first, k, p in lists if key(version)[:2] >= key(first)), ([], []))
            build: Row = {
                "cuda": cuda,
                "index": "default",
                "platforms": ["amd64"],
                "cudnn": str(tested["cudnn"]),
                "wheels": bool(extra),
                "accepts": f">={cuda},<{int(cuda.split('.')[0]) + 1}" if ranged else None,
                "extras": ["and-cuda"] if extra else None,
                # The extra of these releases pins TensorRT packages that the default index has for some
                # Pythons only (2.14) or not at all (2.15.0).
                "extra_python": {"2.14.0": "3.9 3.10", "2.14.1": "3.9 3.10", "2.15.0": "none"}.get(version),
                "kernels": found[0],
                "ptx": found[1],
                "low": "kernels",
                "pins": {
                    match[1]: match[2].removeprefix("==")
                    for text in extra
                    if (
                        match := re.match(r"([\w-]+?)(\[.*\])?\s*([=<>!~].*)$", text)
                        and re.match(r"([\w-]+)(.*)$", text)
                    )
                },
            }
            rows.append(
                self.row(
                    item["source"],
                    version=version,
                    python=pythons(item["python_wheels"]),
                    glibc=glibc(item["linux_tags"]),
                    default=dict.fromkeys(glibc(item["linux_tags"]), "cpu"),
                    builds=[{name: value for name, value in build.items() if value not in (None, [], {}, False)}],
                    numpy=bounds(item.get("numpy"), "numpy"),
                    protobuf=bounds(item.get("protobuf"), "protobuf"),
                    keras=bounds(
                        [t for t in sources(item.get("keras")) if t.startswith(("keras ", "keras>"))],
                        "keras",
                    ),
                    h5py=bounds(item.get("h5py"), "h5py"),
                    ml_dtypes=bounds(str(item["ml_dtypes"]).replace("_", "-"), "ml-dtypes")
                    if item.get("ml_dtypes")
                    else None,
                    keras_generation=3 if key(version)[:2] >= (2, 16) else 2,
                    note=item.get("note"),
                )
            )
        return {"releases": rows}

    # -- JAX ----------------------------------------------------------------------------------------------
    def jax(self) -> dict[str, list[Row]]:
        facts = self.facts("jax")
        items = facts["releases"]
        wheels = {item["version"]: item for item in items if item.get("jaxlib_wheels")}
        rows = [self._jax_release(item, wheels) for item in items]
        packages = []
        for name, entries in facts["ecosystem"].items():
            for item in entries:
                if "from_version" not in item:
                    continue
                needs = {
                    other: bounds(item[other], other)
                    for other in ("jax", "numpy")
                    if item.get(other) and bounds(item[other], other)
                }
                packages.append(
                    self.row(
                        item.get("source") or facts["_meta"].get("source") or f"PyPI metadata of {name}",
                        name=name,
                        since=item["from_version"],
                        requires_python=item.get("requires_python"),
                        needs=needs,
                    )
                )
        return {"releases": rows, "companions": packages}

    def _jax_release(self, item: Row, wheels: Mapping[str, Row]) -> Row:
        version = item["version"]
        lib = item if item.get("jaxlib_wheels") else self._jaxlib_for(item, wheels)
        own = [f"3.{minor}" for minor in range(6, 16) if (3, minor) >= key(str(item["requires_python"]))[:2]]
        interpreters = pythons(lib["jaxlib_wheels"]) if lib else own
        interpreters = [text for text in interpreters if text in own]
        tags = glibc(lib["jaxlib_linux_tags"]) if lib else {"amd64": "2.17"}
        builds = [
            build
            for label in ("cuda11", "cuda12", "cuda13")
            if (build := self._jax_build(item, label, lib)) is not None
        ]
        return self.row(
            item["source"],
            version=version,
            python=interpreters,
            python_unsure=True if lib is None else None,
            jaxlib=lib["version"] if lib else item.get("jaxlib_current"),
            glibc=tags,
            default=dict.fromkeys(tags, "cpu"),
            builds=builds,
            numpy=bounds(item.get("numpy"), "numpy"),
            scipy=bounds(item.get("scipy"), "scipy"),
            ml_dtypes=bounds(str(item["ml_dtypes"]).replace("_", "-"), "ml-dtypes") if item.get("ml_dtypes") else None,
            extras=sorted({name.replace("_", "-") for name in item.get("cuda_extras") or {}}),
            yanked="withdrawn by its publisher" if item.get("note") == "yanked" else None,
        )

    @staticmethod
    def _jaxlib_for(item: Row, wheels: Mapping[str, Row]) -> Row | None:
        match = re.search(r"<=([\d.]+),>=([\d.]+)", str(item.get("jaxlib") or ""))
        wanted = (match[1], match[2]) if match else (item.get("jaxlib_current"),) * 2
        if wanted[0] is None:
            return None
        fits = [name for name in wheels if key(str(wanted[1])) <= key(name) <= key(str(wanted[0]))]
        return wheels[max(fits, key=key)] if fits else None

    def _jax_build(self, item: Row, label: str, lib: Row | None) -> Row | None:
        version, major = item["version"], label.removeprefix("cuda")
        extras = {name.replace("_", "-") for name in item.get("cuda_extras") or {}}
        names = [name for name in (label, f"{label}-pip", f"{label}-local") if name in extras]
        plugin = label in (item.get("cuda_plugins_on_pypi") or {}) or (
            lib is not None and label in (lib.get("cuda_plugins_on_pypi") or {})
        )
        if not names and not (label == "cuda11" and key(version) < key("0.4.7")):
            return None
        if key(version) >= key("0.4.30") and not plugin:
            return None
        text = " ".join(part for part in item.get("built_with") or [] if part.startswith("CUDA " + major))
        built = ".".join(re.findall(r"\d+", text)[:2]) if text else {"11": "11.8", "12": "12.3", "13": "13.0"}[major]
        # The changelog names newer toolkits than the installation page for these lines.
        if label == "cuda12" and key(version) >= key("0.7.1"):
            built = "12.9"
        elif label == "cuda12" and key(version) >= key("0.6.0"):
            built = "12.8"
        lowest = {"11": "11.8", "12": "12.1" if key(version) >= key("0.4.26") else built, "13": "13.0"}[major]
        cudnn = self._jax_cudnn(item, major)
        sm_min = (item.get("min_sm") or {}).get(label) or {"11": "3.5", "12": "5.2", "13": "7.5"}[major]
        driver = str((item.get("min_driver_linux") or {}).get(label) or "")
        strict = driver.split()[0] if "strict" in driver else None
        pins = {}
        for text in item.get(f"{label}_with_cuda_pins") or []:
            match = re.match(r"([\w-]+?)((?:[<>=!~].*)?)$", text)
            if match and match[2]:
                pins[match[1]] = match[2]
        build: Row = {
            "cuda": built,
            "index": "default" if plugin else "jax-cuda-releases",
            "platforms": ["amd64", "arm64"] if plugin and key(version) >= key("0.4.31") else ["amd64"],
            "accepts": f">={lowest},<{int(major) + 1}",
            "wheels": any(name in extras for name in (label, f"{label}-pip")),
            "extras": [label if plugin and label in extras else f"{label}-pip"] if names else [],
            "cudnn": cudnn,
            "sm_min": sm_min,
            "jit": True,
            "driver": strict,
            "low": "kernels" if key(version) >= key("0.6.0") and label == "cuda12" else None,
            "pins": pins,
        }
        return {name: value for name, value in build.items() if value not in (None, [], {}, False)}

    @staticmethod
    def _jax_cudnn(item: Row, major: str) -> str | None:
        if key(item["version"]) >= key("0.6.0"):
            return "9.8"
        for text in item.get("built_with") or []:
            match = re.match(rf"CUDA {major}\.\d+ with cuDNN ([\d.]+\d)", text)
            if match:
                return match[1]
        for text in item.get("built_with") or []:
            match = re.match(r"CUDNN ([\d.]+\d)", text)
            if match:
                return match[1]
        return None

    # -- Keras, PaddlePaddle, MindSpore, MXNet ------------------------------------------------------------
    def keras(self) -> dict[str, list[Row]]:
        keras = self.facts("others")["keras"]
        evidence = sources(keras["requires_python"][0].get("source"))
        rows = []
        newest = int(keras["latest"]["version"].split(".")[1])
        for minor in range(newest + 1):
            first = 9 if minor <= 10 else 10 if minor <= 12 else 11
            rows.append(
                self.row(
                    evidence,
                    version=f"3.{minor}",
                    python=[f"3.{number}" for number in range(first, 16)],
                    default={"amd64": "cpu", "arm64": "cpu"},
                    backends={"tensorflow": "2.16.1", "jax": "0.4.20", "torch": "2.1.0"},
                    latest=keras["latest"]["version"] if minor == newest else None,
                )
            )
        return {"releases": rows}

    def paddle(self) -> dict[str, list[Row]]:
        others = self.facts("others")
        paddle = others["paddlepaddle"]
        cpu = {item["version"]: item for item in paddle["pypi_cpu"]}
        versions = [v for v in paddle["pypi_gpu"]["versions"] if key(v) >= key("2.2") and "post" not in v]
        series = {item["series"].split()[0]: item for item in paddle["cuda_variants"]}
        evidence = sources(paddle["cuda_variants"][0].get("source")) + sources(paddle["pypi_gpu"].get("source"))
        rows = []
        # Pythons of the 2.x GPU wheels were not in the facts for every release; these are the ranges of the
        # release notes and are marked unsure.
        spans = {"2.2": (6, 9), "2.3": (6, 10), "2.4": (6, 10), "2.5": (7, 11), "2.6": (8, 12)}
        for version in sorted({*versions, *cpu, *paddle_three(cpu)}, key=key):
            line = ".".join(version.split(".")[:2])
            known = cpu.get(version)
            span = spans.get(line)
            interpreters = (
                pythons(known["python"])
                if known
                else [f"3.{n}" for n in range(span[0], span[1] + 1)]
                if span
                else ["3.9", "3.10", "3.11", "3.12", "3.13"]
            )
            item = series.get(line) or (PADDLE_THREE if key(version) >= (3, 0) else None)
            rows.append(
                self.row(
                    evidence,
                    version=version,
                    python=interpreters,
                    python_unsure=None if known else True,
                    glibc=glibc(known["linux_tags"]) if known else {"amd64": "2.17"},
                    default={
                        "amd64": "cpu",
                        **({"arm64": "cpu"} if known and "manylinux2014_aarch64" in known["linux_tags"] else {}),
                    },
                    builds=self._paddle_builds(line, item) if item else [],
                )
            )
        return {"releases": rows}

    @staticmethod
    def _paddle_builds(line: str, item: Row) -> list[Row]:
        default = {"2.5": "11.7", "2.6": "11.8"}.get(line, "10.2")
        builds = []
        for names, text in item["cuda"].items():
            for cuda in str(names).split(" and "):
                cudnn = re.search(r"cuDNN ([\d.]+)", str(text))
                three = key(line) >= (3, 0)
                on_default = not three and (cuda == default or (line == "2.5" and "default" in str(text)))
                if line == "2.5" and cuda == "11.7":
                    on_default = False
                build: Row = {
                    "cuda": cuda,
                    "index": "default" if on_default else f"paddle-{tag_of(cuda)}" if three else "paddle-flat",
                    "post": None if three else f"post{cuda.replace('.', '')}",
                    "platforms": ["amd64"],
                    "cudnn": cudnn[1] if cudnn else None,
                    "wheels": three,
                    "sm_min": item.get("min_compute_capability") or ("6.0" if three else None),
                    "low": "kernels",
                }
                builds.append({name: value for name, value in build.items() if value not in (None, [], {}, False)})
        return builds

    def mindspore(self) -> dict[str, list[Row]]:
        rows = []
        for item in self.facts("others")["mindspore"]:
            if "version" not in item:
                continue
            rows.append(
                self.row(
                    item.get("source"),
                    version=item["version"],
                    python=pythons(item["python"]),
                    default={"amd64": "cpu", "arm64": "cpu"},
                    glibc={"amd64": "2.17", "arm64": "2.17"},
                    numpy=bounds(item["numpy"], "numpy"),
                    scipy=bounds(item["scipy"], "scipy"),
                    protobuf=bounds(item["protobuf"], "protobuf"),
                )
            )
        return {"releases": rows}

    def mxnet(self) -> dict[str, list[Row]]:
        mxnet = self.facts("others")["mxnet"]
        evidence = sources(mxnet["latest"].get("source")) + sources(mxnet["cuda_packages"][0].get("source"))
        rows = []
        for version in ("1.6.0", "1.7.0", "1.8.0", "1.9.0", "1.9.1"):
            builds = [
                {
                    "cuda": cuda_of(item["package"].removeprefix("mxnet-")),
                    "index": "default",
                    "distribution": item["package"],
                    "platforms": ["amd64"],
                    "low": "kernels",
                }
                for item in mxnet["cuda_packages"]
                if any(text.split(".post")[0] == version for text in item["versions"])
            ]
            rows.append(
                self.row(
                    evidence,
                    version=version,
                    python=[f"3.{minor}" for minor in range(6, 16)],
                    default={"amd64": "cpu"},
                    glibc={"amd64": "2.17"},
                    builds=builds,
                    numpy=[mxnet["numpy"]["metadata"]],
                )
            )
        return {"releases": rows}

    # -- Further packages ---------------------------------------------------------------------------------
    def packages(self) -> dict[str, list[Row]]:
        others = self.facts("others")
        rows: list[Row] = []
        for name, section in (
            ("onnx", "onnx"),
            ("onnxruntime", "onnxruntime"),
            ("onnxruntime-gpu", "onnxruntime_gpu"),
            ("openvino", "openvino"),
            ("tf2onnx", "tf2onnx"),
            ("tf-keras", "tf_keras"),
            ("onnxsim", "onnxsim"),
            ("ai-edge-litert", "ai_edge_litert"),
            ("tflite-runtime", "tflite_runtime"),
            ("jax2onnx", "jax2onnx"),
        ):
            rows += [
                self._package(name, item) for item in others[section] if isinstance(item, dict) and "version" in item
            ]
        return {"packages": rows}

    def _package(self, name: str, item: Row) -> Row:
        needs: dict[str, list[str]] = {}
        for other in ("numpy", "protobuf", "onnx", "onnxruntime", "jax", "flax", "tensorflow"):
            found = bounds(item.get(other), other)
            if found:
                needs[other] = found
        cuda = re.match(r"(\d+)", str(item.get("cuda") or ""))
        cudnn = re.match(r"(\d+)", str(item.get("cudnn") or ""))
        return self.row(
            item.get("source"),
            name=name,
            version=item["version"],
            python=pythons(item.get("python") or []),
            requires_python=item.get("requires_python"),
            glibc=glibc(item.get("linux_tags") or []),
            needs=needs,
            opset=item.get("opset"),
            max_opset=item.get("max_opset"),
            ir=item.get("ir"),
            max_ir=item.get("max_ir"),
            cuda_major=cuda[1] if cuda else None,
            cuda=item.get("cuda"),
            cudnn_major=cudnn[1] if cudnn else None,
            yanked="withdrawn by its publisher" if item.get("yanked") else None,
            note=item.get("note"),
        )

    # -- Base images --------------------------------------------------------------------------------------
    def bases(self) -> dict[str, list[Row]]:
        facts = self.facts("base_images")
        digests = self._digests()
        gone = set(facts["unsupported_2025_08"]["cuda"]) - set(facts["supported_2025_08"]["cuda"])
        systems = []
        for item in facts["glibc"]:
            for name in str(item["distro"]).split(" / "):
                systems.append(
                    self.row(item["source"], system=name, glibc=item["glibc"], confidence=item.get("confidence"))
                )
        images = []
        for item in facts["images"]:
            cudnn = item.get("cudnn_in_image")
            images.append(
                self.row(
                    item["source"],
                    cuda=item["cuda"],
                    series=".".join(item["cuda"].split(".")[:2]),
                    distros=item["distros"],
                    kinds=item["kinds"],
                    cudnn=cudnn,
                    no_cudnn=item.get("distros_without_cudnn"),
                    accepts_branches=[
                        str(n) for n in (item.get("require_exceptions") or {}).get("driver_branches", [])
                    ],
                    accepts_geforce=(item.get("require_exceptions") or {}).get("geforce_listed"),
                    ended=True if item["cuda"] in gone else None,
                )
            )
        for item in facts["later_images"]:
            images.append(
                self.row(
                    item["source"],
                    cuda=item["cuda"],
                    series=".".join(item["cuda"].split(".")[:2]),
                    tags=item["seen_tags"],
                    confidence=item.get("confidence"),
                )
            )
        hub = facts["docker_hub_seen_2026_05"]
        have = {row["cuda"] for row in images}
        older: dict[str, list[str]] = {}
        for tag in hub["tags"]:
            if tag.split("-")[0] not in have:
                older.setdefault(tag.split("-")[0], []).append(tag)
        for cuda, tags in older.items():
            # Only cuDNN devel tags were listed there; the other flavours are published together with them.
            images.append(
                self.row(
                    hub.get("source"),
                    cuda=cuda,
                    series=".".join(cuda.split(".")[:2]),
                    distros=sorted({tag.rsplit("-", 1)[1] for tag in tags}),
                    kinds=["base", "runtime", "devel", "cudnn8-runtime", "cudnn8-devel"],
                    cudnn="8",
                    ended=True if cuda in gone else None,
                    confidence="low",
                    note="seen as cuDNN devel tags; the other flavours are taken to stand beside them",
                )
            )
        images.sort(key=lambda row: key(row["cuda"]))
        return {"systems": systems, "cuda_images": images, "digests": digests}

    def _digests(self) -> list[Row]:
        rows = []
        for item in self.facts("image_digests")["digests"]:
            if item["kind"] == "index":
                rows.append(
                    self.row(
                        item.get("source") or item.get("sources"),
                        image=f"{item['image']}:{item['tag']}",
                        digest=item["digest"],
                        note=item.get("note"),
                    )
                )
        return rows


PADDLE_THREE: Row = {"cuda": {"11.8": "", "12.6": "", "12.9": ""}, "min_compute_capability": "6.0"}


def paddle_three(cpu: Mapping[str, Row]) -> list[str]:
    """3.x versions known for the CPU; their GPU builds live on the vendor's index."""
    return [version for version in cpu if key(version) >= (3, 0)]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def write(path: Path, title: str, table: Mapping[str, list[Row]]) -> None:
    """One table file: a comment, then each row as a block with its inner lists on one line."""
    lines = [
        f"# {title}",
        "# Rows are kept by hand and by tools/update_*.py; `source` and `checked` stand on every row.",
    ]
    for section, rows in table.items():
        lines.append(f"{section}:")
        for row in rows:
            text = yaml.dump(
                [row], Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True
            )
            lines.append(text.rstrip("\n"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


TITLES = {
    "cuda": "CUDA toolkits, driver branches and architectures (Linux).",
    "gpus": "NVIDIA GPUs and their compute capability.",
    "torch": "PyTorch releases: wheels, CUDA builds, kernels, companions.",
    "tensorflow": "TensorFlow releases: wheels, tested CUDA and cuDNN, bounds.",
    "jax": "JAX releases with their jaxlib and CUDA plugins, and the packages around them.",
    "keras": "Keras 3 minor lines and the backends they accept.",
    "paddle": "PaddlePaddle releases, CPU (default index) and GPU (vendor index).",
    "mindspore": "MindSpore releases on the default index (CPU).",
    "mxnet": "Apache MXNet releases (retired project) and their CUDA-suffixed packages.",
    "packages": "Exporters, runtimes and other packages with versions that matter.",
    "bases": "Base images: systems and glibc, CUDA images, known index digests.",
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "envforge" / "data")
    options = parser.parse_args()
    maker = Maker(options.facts)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, title in TITLES.items():
        table = getattr(maker, name)()
        write(options.out / f"{name}.yaml", title, table)
        print(f"{name}.yaml: " + ", ".join(f"{len(rows)} {section}" for section, rows in table.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
