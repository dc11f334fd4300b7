"""The example manifests and the container file, against each other, the package and the command line."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

import dippm
from dippm.cli.serve import serve
from dippm.graph import OpKind

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "kubernetes"


@pytest.fixture(name="service")
def _service() -> dict[str, dict[str, Any]]:
    """The documents of the service by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / "service.yaml").read_text(encoding="utf-8"))}


@pytest.fixture(name="lines")
def _lines() -> list[str]:
    """The instructions of the container file, each on one line."""
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Containerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def options() -> set[str]:
    return {f"--{name.replace('_', '-')}" for name in signature(serve).parameters}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.name)
def test_manifests_are_objects_of_kubernetes(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents
    for document in documents:
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(document)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", document["metadata"]["name"])


def test_the_service_finds_its_pods(service: dict[str, dict[str, Any]]) -> None:
    assert set(service) == {"Deployment", "Service", "NetworkPolicy"}
    template = service["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert service["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert service["Service"]["spec"]["selector"] == labels
    assert service["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [port["targetPort"] for port in service["Service"]["spec"]["ports"]] == list(ports)
    (rule,) = service["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == list(ports)
    assert rule["from"]
    assert service["NetworkPolicy"]["spec"]["egress"] == []
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} == set(ports)
    routes = (ROOT / "src" / "dippm" / "server" / "app.py").read_text(encoding="utf-8")
    for probe in probes:
        assert f'"{probe["path"]}"' in routes


def test_the_service_may_do_little(service: dict[str, dict[str, Any]]) -> None:
    pod = service["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == "/tmp"  # noqa: S108 - inside the container
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"]}
    (token,) = [each for each in container["env"] if each["name"] == "DIPPM_TOKEN"]
    assert "value" not in token
    assert set(token["valueFrom"]) == {"secretKeyRef"}
    assert set(container["resources"]) == {"requests", "limits"}


def test_the_service_is_started_as_the_command_line_knows_it(service: dict[str, dict[str, Any]]) -> None:
    pod = service["Deployment"]["spec"]["template"]["spec"]
    command, *words = pod["containers"][0]["args"]
    assert command == "serve"
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert set(given) <= options()
    assert given["--host"] == "0.0.0.0"  # noqa: S104 - inside a container
    assert int(given["--port"]) == pod["containers"][0]["ports"][0]["containerPort"]
    grace_s = signature(serve).parameters["grace_s"].default
    assert pod["terminationGracePeriodSeconds"] > float(given["--drain-s"]) + grace_s
    # All workers at their limit, and something for the process that starts them.
    limit_mb = 1024 * int(pod["containers"][0]["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert int(given["--workers"]) * int(given["--memory-mb"]) < limit_mb


def test_the_container_copies_what_exists_and_installs_what_is_declared(lines: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from=" not in line]
    sources = [source for each in copied for source in each]
    assert all((ROOT / source).exists() for source in sources)
    # What the build of the package reads.
    assert {"pyproject.toml", "setup.py", "src", project["readme"], *project["license-files"]} <= set(sources)
    (extras,) = [line.partition("=")[2] for line in lines if line.startswith("ARG EXTRAS")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (install,) = [line for line in lines if "pip install" in line]
    assert shlex.split(install)[-1] == ".[${EXTRAS}]"
    comments = re.findall(r"EXTRAS=([a-z,]+)", (FOLDER / "Containerfile").read_text(encoding="utf-8"))
    assert all(set(each.split(",")) <= set(project["optional-dependencies"]) for each in comments)


def test_the_container_starts_the_service_as_nobody_special(
    lines: list[str], service: dict[str, dict[str, Any]]
) -> None:
    pod = service["Deployment"]["spec"]["template"]["spec"]
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert user == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert not user.startswith("0")
    (entry,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("ENTRYPOINT")]
    assert entry == ["dippm"]
    (command,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("CMD")]
    assert {word for word in command if word.startswith("--")} <= options()
    (port,) = [line.split()[1] for line in lines if line.startswith("EXPOSE")]
    assert port == command[-1] == str(pod["containers"][0]["ports"][0]["containerPort"])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert pod["containers"][0]["image"] == f"dippm:{version}"


def test_the_pod_asks_as_dippm_writes_it(builder: Any) -> None:
    pod = yaml.safe_load((FOLDER / "pod.yaml").read_text(encoding="utf-8"))
    notes = pod["metadata"]["annotations"]
    x = builder.input(builder.N, 8)
    builder.node(OpKind.RELU, [x], builder.N, 8)
    prediction = replace(dippm.predict(builder.graph(), device=notes["dippm/device"]), mig=notes["dippm/mig"])
    written = yaml.safe_load(dippm.pod_fragment(prediction))
    assert pod["spec"]["affinity"] == written["spec"]["affinity"]
    (container,), (asked,) = pod["spec"]["containers"], written["spec"]["containers"]
    assert container["name"] == asked["name"]
    assert container["resources"] == asked["resources"]
    assert set(notes) == set(written["metadata"]["annotations"])
    profile = dippm.find_device(f"{notes['dippm/mig']}@{notes['dippm/device']}")
    assert float(notes["dippm/memory-mb-low"]) < float(notes["dippm/memory-mb-high"]) <= profile.capacity_mb


def test_the_file_of_models_is_read() -> None:
    models = dippm.load_models_file(FOLDER / "models.toml")
    assert [model.name for model in models] == ["classifier", "embedder", "nightly"]
