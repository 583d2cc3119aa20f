"""deploy/ fits the commands and itself: options exist, files exist, ports, volumes and names match each other.

No container is started here: command lines are parsed by the real click commands, everything else is read.
"""

import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from warmroute import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS = [
    manifest
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
]
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))


@dataclass(frozen=True)
class Dockerfile:
    """Its instructions in order; `last` gives the final value of one."""

    instructions: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: Path) -> "Dockerfile":
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
        return cls(tuple((name, rest) for name, _, rest in (line.partition(" ") for line in joined if line)))

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    @property
    def command(self) -> list[str]:
        return [*json.loads(self.last("ENTRYPOINT")), *json.loads(self.last("CMD"))]


def image_of(dockerfile: Path) -> str:
    return f"warmroute-{dockerfile.name.removesuffix('.Dockerfile')}:{PROJECT['project']['version']}"


IMAGES = {image_of(path): Dockerfile.read(path) for path in DOCKERFILES}


def command_line(image: str, arguments: list[str] | None) -> list[str]:
    """What a container of `image` runs: its arguments replace the image's own."""
    dockerfile = IMAGES[image]
    return dockerfile.command if arguments is None else [*json.loads(dockerfile.last("ENTRYPOINT")), *arguments]


def options(line: list[str]) -> dict[str, Any]:
    """The values that the command would run with. Raises click.UsageError for a line that it would refuse."""
    program, *arguments = line
    assert program == PROJECT["project"]["name"]
    context = click.Context(main, info_name=program)
    name, command, rest = main.resolve_command(context, arguments)
    return command.make_context(name, list(rest), parent=context).params


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == kind}


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in ("Deployment", "StatefulSet"):
        yield from ((name, manifest["spec"]) for name, manifest in of_kind(kind).items())


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container (not init) with the pod's workload."""
    for _, workload in workloads():
        for container in workload["template"]["spec"]["containers"]:
            yield container, workload


COMMAND_LINES = {
    **{f"image {image}": dockerfile.command for image, dockerfile in IMAGES.items()},
    **{
        f"compose {name}": command_line(service["image"], service.get("command"))
        for name, service in COMPOSE["services"].items()
    },
    **{
        f"kubernetes {container['name']}": command_line(container["image"], container.get("args"))
        for container, _ in containers()
    },
}


@pytest.mark.parametrize("where", COMMAND_LINES)
def test_the_command_takes_this_line(where):
    values = options(COMMAND_LINES[where])
    assert values["host"] == "0.0.0.0", "a container that listens on loopback serves nobody"


def test_a_wrong_option_would_be_noticed():
    with pytest.raises(click.UsageError, match="--no-such"):
        options(["warmroute", "worker", "--model=m", "--no-such=1"])


def workers_and_router(prefix: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    lines = [line for where, line in COMMAND_LINES.items() if where.startswith(prefix)]
    routers = [options(line) for line in lines if line[1] == "router"]
    assert len(routers) == 1
    return [options(line) for line in lines if line[1] == "worker"], routers[0]


@pytest.mark.parametrize("prefix", ["compose", "kubernetes"])
def test_it_starts_what_the_demo_starts(prefix):
    workers, router = workers_and_router(prefix)
    assert router["policy"] == "expected_work"
    assert len(router["worker"]) == 2
    assert {worker["model"] for worker in workers} == {"smollm2-135m"}


@pytest.mark.parametrize("where", [where for where, line in COMMAND_LINES.items() if line[1] == "worker"])
def test_event_sockets_are_bound_on_known_ports_for_others_to_reach(where):
    values = options(COMMAND_LINES[where])
    for endpoint in (values["kv_events"], values["kv_replay"]):
        assert re.fullmatch(r"tcp://\*:[1-9]\d+", endpoint), endpoint


# Dockerfiles


@pytest.mark.parametrize("image", IMAGES)
def test_image_holds_every_package_and_only_files_that_exist(image):
    copied = {
        source for rest in IMAGES[image].all("COPY") if not rest.startswith("--from") for source in rest.split()[:-1]
    }
    packages = {package.partition(".")[0] for package in PROJECT["tool"]["setuptools"]["packages"]}
    modules = {f"{module}.py" for module in PROJECT["tool"]["setuptools"]["py-modules"]}
    needed = packages | modules | {"pyproject.toml", "constraints.txt", "LICENSE", PROJECT["project"]["readme"]}
    assert copied == needed
    assert [name for name in copied if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("image", IMAGES)
def test_image_runs_as_a_user_that_it_makes(image):
    made = re.search(r"useradd --uid (\d+)", " ".join(IMAGES[image].all("RUN")))
    assert made
    assert IMAGES[image].last("USER") == made[1]
    names = [name for name, _ in IMAGES[image].instructions]
    assert "USER" in names[len(names) - names[::-1].index("FROM") :], "the last stage is the one that runs"


def test_only_the_worker_image_has_torch():
    installs = {image: " ".join(dockerfile.all("RUN")) for image, dockerfile in IMAGES.items()}
    [worker] = [text for image, text in installs.items() if "worker" in image]
    [router] = [text for image, text in installs.items() if "router" in image]
    assert "torch" in worker
    assert "[worker]" in worker
    assert "torch" not in router
    assert "[" not in router


@pytest.mark.parametrize("image", IMAGES)
def test_image_exposes_the_ports_that_it_listens_on(image):
    values = options(IMAGES[image].command)
    endpoints = [values[name] for name in ("kv_events", "kv_replay") if name in values]
    listening = [values["port"], *(int(endpoint.rpartition(":")[2]) for endpoint in endpoints)]
    assert IMAGES[image].last("EXPOSE") == " ".join(map(str, listening))


# Compose


def test_compose_builds_the_images_that_it_names():
    for service in COMPOSE["services"].values():
        dockerfile = DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
        assert dockerfile.is_file()
        assert service["image"] == image_of(dockerfile)


def test_compose_router_names_each_worker_service_at_its_port():
    services = COMPOSE["services"]
    ports = {
        name: options(command_line(service["image"], service["command"]))["port"]
        for name, service in services.items()
        if "worker" in service["image"]
    }
    router = options(COMMAND_LINES["compose router"])
    assert {spec.url for spec in router["worker"]} == {f"http://{name}:{port}" for name, port in ports.items()}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_compose_service_is_probed_and_published_at_its_own_port(name):
    service = COMPOSE["services"][name]
    port = options(command_line(service["image"], service["command"]))["port"]
    probe = re.search(r"http://[^']+", " ".join(service["healthcheck"]["test"]))
    assert probe
    assert urlsplit(probe[0]).port == port
    assert urlsplit(probe[0]).path == ("/ready" if name == "router" else "/health")
    assert all(published.endswith(f":{port}") for published in service.get("ports", []))
    assert set(service.get("depends_on", {})) <= set(COMPOSE["services"])


def test_compose_services_share_the_model_cache_at_one_path():
    mounts = {tuple(service["volumes"][0].split(":")[:2]) for service in COMPOSE["services"].values()}
    assert len(mounts) == 1
    [(volume, path)] = mounts
    assert set(COMPOSE["volumes"]) == {volume}
    assert all(f"XDG_CACHE_HOME={path}" in dockerfile.last("ENV") for dockerfile in IMAGES.values())


# Kubernetes


def test_manifests_use_the_images_that_are_built_here():
    pods = [workload["template"]["spec"] for _, workload in workloads()]
    used = {each["image"] for pod in pods for each in [*pod["containers"], *pod.get("initContainers", [])]}
    assert used == set(IMAGES)


@pytest.mark.parametrize(("name", "workload"), list(workloads()), ids=[name for name, _ in workloads()])
def test_pods_are_selected_unprivileged_and_bounded(name, workload):
    pod = workload["template"]["spec"]
    labels = workload["template"]["metadata"]["labels"]
    assert workload["selector"]["matchLabels"].items() <= labels.items()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) in {dockerfile.last("USER") for dockerfile in IMAGES.values()}
    volumes = {each["name"] for each in pod.get("volumes", [])}
    volumes |= {each["metadata"]["name"] for each in workload.get("volumeClaimTemplates", [])}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
            assert f"XDG_CACHE_HOME={mount['mountPath']}" in IMAGES[container["image"]].last("ENV")


@pytest.mark.parametrize("container", [each for each, _ in containers()], ids=lambda each: each["name"])
def test_container_ports_are_those_that_it_listens_on_and_is_probed_at(container):
    values = options(command_line(container["image"], container["args"]))
    listening = {"http": values["port"]}
    for name in ("kv_events", "kv_replay"):
        if name in values:
            listening[name.replace("_", "-")] = int(values[name].rpartition(":")[2])
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == listening
    probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
    assert {"readinessProbe", "livenessProbe"} <= probes.keys()
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert probes["livenessProbe"]["path"] == "/health"
    assert probes["readinessProbe"]["path"] == ("/ready" if container["name"] == "router" else "/health")


@pytest.mark.parametrize(("name", "service"), list(of_kind("Service").items()), ids=list(of_kind("Service")))
def test_service_reaches_named_ports_of_the_pods_that_it_selects(name, service):
    selected = [
        workload
        for _, workload in workloads()
        if service["spec"]["selector"].items() <= workload["template"]["metadata"]["labels"].items()
    ]
    assert len(selected) == 1
    [container] = selected[0]["template"]["spec"]["containers"]
    names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == names


def test_init_containers_run_python_that_exists_here():
    for _, workload in workloads():
        for container in workload["template"]["spec"].get("initContainers", []):
            [program, flag, code] = container["command"]
            assert (program, flag) == ("python", "-c")
            [(module, name)] = re.findall(r"from (\S+) import (\w+)", code)
            assert callable(getattr(importlib.import_module(module), name))
            assert f"{name}('smollm2-135m')" in code


def test_router_names_each_worker_pod_through_the_headless_service():
    [(name, workers)] = of_kind("StatefulSet").items()
    service = of_kind("Service")[workers["spec"]["serviceName"]]
    assert service["spec"]["clusterIP"] == "None"
    [container] = workers["spec"]["template"]["spec"]["containers"]
    port = options(command_line(container["image"], container["args"]))["port"]
    pods = [f"{name}-{number}.{service['metadata']['name']}" for number in range(workers["spec"]["replicas"])]
    router = options(COMMAND_LINES["kubernetes router"])
    assert [spec.url for spec in router["worker"]] == [f"http://{pod}:{port}" for pod in pods]
    assert all(spec.events is None for spec in router["worker"]), "their /kv_event_sources says where"
