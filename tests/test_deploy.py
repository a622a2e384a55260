"""What stands in deploy/ and the Dockerfile: valid by the schemas of Kubernetes and Compose, and in step with the package."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from relaygen import config
from relaygen.cli import app
from relaygen.config import Settings
from relaygen.gateway.auth import VARIABLE
from tests.serving import serving

# Both without types.
kubernetes_validate: Any = importlib.import_module("kubernetes_validate")
validators: Any = importlib.import_module("jsonschema.validators")

ROOT = Path(__file__).parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
SECRETS = {VARIABLE, "RELAYGEN_LARGE_API_KEY", "RELAYGEN_SMALL_API_KEY"}
AUTHORS = ("large", "small")
LAST_WORDS_S = 5  # the ends of aborted streams take 3


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text()))


def manifest(name: str, kind: str) -> dict[str, Any]:
    [found] = [one for one in manifests(name) if one["kind"] == kind]
    return found


def pod_of(name: str) -> dict[str, Any]:
    return manifest(name, "Deployment")["spec"]["template"]["spec"]


def container_of(name: str) -> dict[str, Any]:
    [container] = pod_of(name)["containers"]
    return container


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "docker-compose.yaml").read_text())


@pytest.fixture(scope="module")
def launched() -> dict[str, dict[str, Any]]:
    """By model: what `relaygen launch` prints, with a GPU each."""
    arguments = ["launch", "qwen3-32b", "--gpus", "0,1", "--host", "0.0.0.0", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return {server["engine"]: server for server in json.loads(result.stdout)["servers"]}


def settings_of(environment: Mapping[str, str]) -> Settings:
    """As the gateway reads them; every variable must be one that it knows."""
    known = {f"RELAYGEN_{field.upper()}" for field in Settings.model_fields} | SECRETS
    assert set(environment) <= known
    return config.load(None, environment, {}, default_file=Path("there is none"))


# --- Kubernetes


@pytest.mark.parametrize("file", ["gateway", *AUTHORS])
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_manifests_are_valid(file: str, version: str) -> None:
    for one in manifests(file):
        kubernetes_validate.validate(one, version, strict=True)


def test_an_invalid_manifest_is_noticed() -> None:
    broken = manifest("gateway", "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.34", strict=True)


def test_all_manifests_are_applied() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in KUBERNETES.iterdir()}


@pytest.mark.parametrize("file", ["gateway", *AUTHORS])
def test_selectors_and_ports_meet(file: str) -> None:
    deployment, service = manifest(file, "Deployment"), manifest(file, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    [port] = container_of(file)["ports"]
    assert [p["targetPort"] for p in service["spec"]["ports"]] == [port["name"]]
    probes = [probe for name, probe in container_of(file).items() if name.endswith("Probe")]
    assert {probe["httpGet"]["port"] for probe in probes} == {port["name"]}
    volumes = {volume["name"] for volume in pod_of(file)["volumes"]}
    assert {mount["name"] for mount in container_of(file)["volumeMounts"]} == volumes


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "PodDisruptionBudget"])
def test_what_scales_and_guards_is_the_gateway(kind: str) -> None:
    spec, deployment = manifest("gateway", kind)["spec"], manifest("gateway", "Deployment")
    if kind == "PodDisruptionBudget":
        assert spec["selector"] == deployment["spec"]["selector"]
    else:
        target = spec["scaleTargetRef"]
        assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])


def gateway_settings() -> Settings:
    settings = manifest("gateway", "ConfigMap")
    container = container_of("gateway")
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert {one["name"] for one in container["env"]} == SECRETS
    return settings_of(settings["data"])


def test_the_gateway_listens_and_asks_where_the_manifests_say() -> None:
    settings = gateway_settings()
    assert (settings.host, [settings.port]) == (
        "0.0.0.0",
        [p["containerPort"] for p in container_of("gateway")["ports"]],
    )
    for author in AUTHORS:
        service = manifest(author, "Service")
        [port] = service["spec"]["ports"]
        assert getattr(settings, author) == f"http://{service['metadata']['name']}:{port['port']}"


async def test_the_gateway_answers_its_probes() -> None:
    container = container_of("gateway")
    paths = [container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")]
    assert paths == ["/ready", "/health"]
    async with serving() as gateway:
        for path in paths:
            async with gateway.http.get(gateway.url + path) as response:
                assert response.status == 200


def test_a_pod_that_is_stopped_has_the_time_it_takes() -> None:
    pod, container = pod_of("gateway"), container_of("gateway")
    leaving_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed_s = leaving_s + gateway_settings().grace_s + LAST_WORDS_S
    assert needed_s < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("author", AUTHORS)
def test_engines_run_as_relaygen_launch_would(author: str, launched: dict[str, dict[str, Any]]) -> None:
    container, server = container_of(author), launched[author]
    assert [*container["command"], *container["args"]] == server["argv"]
    given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    assert given == {name: value for name, value in server["env"].items() if name != "CUDA_VISIBLE_DEVICES"}
    assert server["url"].endswith(f":{container['ports'][0]['containerPort']}")
    path = container["readinessProbe"]["httpGet"]["path"]
    assert server["ready"] == server["url"] + path
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_keys_come_from_the_secret_alone() -> None:
    for file in ("gateway", *AUTHORS):
        for one in container_of(file)["env"]:
            if one["name"].endswith(("KEY", "KEYS")):
                assert one["valueFrom"]["secretKeyRef"]["name"] == "relaygen-keys"
    assert [one["kind"] for file in ("gateway", *AUTHORS) for one in manifests(file)].count("Secret") == 0


# --- Compose


def test_the_compose_file_is_valid() -> None:
    vendored = resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    schema = json.loads(vendored.read_text())
    checker = validators.validator_for(schema)(schema)
    checker.validate(compose())
    broken = compose()
    broken["services"]["gateway"]["prots"] = ["8000:8000"]
    assert not checker.is_valid(broken)


@pytest.mark.parametrize("author", AUTHORS)
def test_engines_of_the_compose_file_too(author: str, launched: dict[str, dict[str, Any]]) -> None:
    service, server = compose()["services"][author], launched[author]
    assert [*service["entrypoint"], *service["command"]] == server["argv"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    given = {**service["environment"], "CUDA_VISIBLE_DEVICES": device["device_ids"][0]}
    assert given == server["env"]
    asked = server["ready"].replace("0.0.0.0", "127.0.0.1")
    assert asked in service["healthcheck"]["test"][-1]


def test_the_gateway_of_the_compose_file(launched: dict[str, dict[str, Any]]) -> None:
    service = compose()["services"]["gateway"]
    assert (ROOT / "deploy" / service["build"]).resolve() == ROOT
    settings = settings_of(service["environment"])
    for author in AUTHORS:
        assert getattr(settings, author) == launched[author]["url"].replace("0.0.0.0", author)
        assert service["depends_on"][author]["condition"] == "service_healthy"
    assert service["ports"] == [f"8000:{settings.port}"]
    assert settings.grace_s + LAST_WORDS_S < float(service["stop_grace_period"].removesuffix("s"))


# --- Dockerfile


def dockerfile() -> list[tuple[str, str]]:
    """Instructions and what follows them."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_lock_has_all_that_the_gateway_needs_by_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["serve"])
    ]
    entries = re.split(r"\n(?=[a-z])", (ROOT / "requirements.lock").read_text().replace("\\\n", " "))[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = {one.name: one for one in (Requirement(entry.partition(" --hash")[0]) for entry in entries)}
    for one in needed:
        [version] = locked[canonicalize_name(one.name)].specifier
        assert version.operator == "=="
        assert one.specifier.contains(version.version), one
    assert any(
        "pip install --no-cache-dir --require-hashes -r requirements.lock" in rest for _, rest in dockerfile()
    )


def test_the_image_is_made_of_files_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [shlex.split(rest) for word, rest in dockerfile() if word == "COPY" and "--from" not in rest]
    sources = {source for *names, _ in copied for source in names}
    assert sources == {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[0] == "*"
    assert all((ROOT / source).exists() for source in sources)
    assert {project["readme"], *project["license-files"], "pyproject.toml"} < sources


def test_the_image_runs_the_gateway_as_nobody_special() -> None:
    found = dict(dockerfile())  # the last of each
    assert found["USER"] == "10001" == str(pod_of("gateway")["securityContext"]["runAsUser"])
    assert any("useradd --uid 10001" in rest for word, rest in dockerfile() if word == "RUN")
    variables = dict(word.split("=", 1) for word in shlex.split(found["ENV"]))
    assert variables.pop("PATH").startswith("/opt/relaygen/bin:")
    settings = settings_of(variables)
    assert (settings.host, str(settings.port)) == ("0.0.0.0", found["EXPOSE"])
    assert f"http://127.0.0.1:{settings.port}/health" in found["HEALTHCHECK"]
    assert [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])] == ["relaygen", "serve"]
    assert container_of("gateway")["args"] == json.loads(found["CMD"])
    version = re.fullmatch(r"python:(3\.\d+)-slim", found["FROM"])
    assert version
