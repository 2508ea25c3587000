"""The Kubernetes manifests: valid, restricted as documented, and consistent with the service."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import kubernetes_validate
import yaml
from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy.config import VARIABLES, Config, load
from audioproxy.service import make_resource
from tests.deploy.promql import PROMETHEUS
from tests.deploy.test_container import final
from tests.support.runs import output_of
from tests.support.service import PROJECT, reactor

FOLDER = PROJECT / "deploy/kubernetes"

#: The oldest release that the manifests support, and the newest with available schemas.
RELEASES = ("1.28", kubernetes_validate.latest_version())

#: Kinds of other projects, for which Kubernetes has no schemas.
FOREIGN = ("Kustomization", "ServiceMonitor")

#: Values that an operator fills in, in a valid form.
SECRETS = {
    "AP_KEY": "0" * 64,
    "AP_SALT": "0" * 64,
    "AP_PREVIOUS_KEY": "",
    "AP_PREVIOUS_SALT": "",
    "AWS_ACCESS_KEY_ID": "identity",
    "AWS_SECRET_ACCESS_KEY": "secret",
}

Manifest = dict[str, Any]


@cache
def manifests() -> dict[str, list[Manifest]]:
    """Return the documents of each file."""
    return {
        path.name: list(yaml.safe_load_all(path.read_text()))
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def all_documents() -> list[Manifest]:
    """Return the documents of all files."""
    return [document for documents in manifests().values() for document in documents]


def get_document(kind: str, name: str = "audioproxy") -> Manifest:
    """Return the document of a kind and a name."""
    (found,) = (
        document
        for document in all_documents()
        if (document["kind"], document.get("metadata", {}).get("name")) == (kind, name)
    )
    return found


def pod() -> Manifest:
    """Return the specification of the pods."""
    specification: Manifest = get_document("Deployment")["spec"]["template"]["spec"]
    return specification


def container() -> Manifest:
    """Return the only container of the pods."""
    (found,) = pod()["containers"]
    return dict(found)


def settings() -> dict[str, str]:
    """Return the environment of the container, with the operator's values."""
    plain = {row["name"]: row["value"] for row in container()["env"]}
    configured: dict[str, str] = get_document("ConfigMap")["data"]
    return plain | configured | SECRETS


def configuration() -> Config:
    """Return the configuration that the service reads from its environment."""
    config, _ = load(settings())
    return config


class SchemaTests(SynchronousTestCase):
    """A cluster accepts the manifests."""

    def test_schemas(self) -> None:
        """Every manifest is valid for Kubernetes, without unknown fields."""
        for document in all_documents():
            if document["kind"] not in FOREIGN:
                for release in RELEASES:
                    kubernetes_validate.validate(document, release, strict=True)

    def test_image(self) -> None:
        """The image's tag is the version of the service."""
        (kustomization,) = manifests()["kustomization.yaml"]
        (image,) = kustomization["images"]
        self.assertEqual(container()["image"], image["name"])
        self.assertEqual(audioproxy.__version__, image["newTag"])


class SettingsTests(SynchronousTestCase):
    """The service accepts its settings."""

    def test_it_loads(self) -> None:
        """With the secrets filled in, the configuration has no error and no warning.

        Each key is a known setting, and none is given twice (D33). The example has no secret. The
        URLs of redirects outlive a listener's pause.
        """
        plain, secret = get_document("ConfigMap")["data"], get_document("Secret")["stringData"]
        self.assertEqual(set(), (plain.keys() | secret.keys()) - set(VARIABLES))
        self.assertEqual(set(), plain.keys() & secret.keys())
        self.assertEqual(dict.fromkeys(SECRETS, ""), secret)
        config, warnings = load(settings())
        self.assertEqual(((), True), (warnings, config.variant_s3.configured))
        self.assertEqual(21_600, config.presign_ttl)

    def test_volume_size(self) -> None:
        """Temporary files have their own volume, with space for renders and sources (D46)."""
        config = configuration()
        (mount,), (volume,) = container()["volumeMounts"], pod()["volumes"]
        self.assertEqual(mount["name"], volume["name"])
        self.assertEqual(settings()["TMPDIR"], mount["mountPath"])
        needed = config.max_concurrency * (config.max_src_bytes + config.max_variant_bytes)
        size = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) << 30
        self.assertGreater(size, 2 * needed)


class PodTests(SynchronousTestCase):
    """The pods start, run and stop as the service requires."""

    def test_probes(self) -> None:
        """Liveness uses /health and readiness /ready (Running several nodes, 4)."""
        ports = {row["name"]: row["containerPort"] for row in container()["ports"]}
        config = configuration()
        self.assertEqual({"http": config.port, "metrics": config.metrics_port}, ports)
        for probe, path in (
            ("startupProbe", "/health"),
            ("livenessProbe", "/health"),
            ("readinessProbe", "/ready"),
        ):
            self.assertEqual({"path": path, "port": "http"}, container()[probe]["httpGet"])

    def test_grace_period(self) -> None:
        """The grace period covers the last renders and the preStop sleep for the balancer (D39)."""
        words = container()["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual("sleep", words[0])
        drain = make_resource(configuration(), reactor).drain_timeout
        self.assertGreater(pod()["terminationGracePeriodSeconds"], int(words[1]) + drain + 10)

    def test_no_privileges(self) -> None:
        """The pod runs as the image's user, without privileges, and writes only to its volume.

        It has no token, and no variables of the namespace's Services.
        """
        user, group = map(int, final("USER")[-1].split(":"))
        rights = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": group}
        rights["seccompProfile"] = {"type": "RuntimeDefault"}
        self.assertLessEqual(rights.items(), pod()["securityContext"].items())
        self.assertEqual(
            {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            container()["securityContext"],
        )
        self.assertFalse(pod()["automountServiceAccountToken"])
        self.assertFalse(pod()["enableServiceLinks"])


class NetworkTests(SynchronousTestCase):
    """The network access to the pods."""

    def test_selectors(self) -> None:
        """Every selector has the labels of the Deployment's pods."""
        labels = get_document("Deployment")["spec"]["template"]["metadata"]["labels"]
        (spread,) = pod()["topologySpreadConstraints"]
        self.assertEqual(labels, spread["labelSelector"]["matchLabels"])
        for selector in (
            get_document("Deployment")["spec"]["selector"]["matchLabels"],
            get_document("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
            get_document("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
            get_document("Service")["spec"]["selector"],
            get_document("Service", "audioproxy-nodes")["spec"]["selector"],
        ):
            self.assertEqual(labels, selector)

    def rules(self) -> list[Manifest]:
        """Return the ingress rules of the NetworkPolicy."""
        found: list[Manifest] = get_document("NetworkPolicy")["spec"]["ingress"]
        return found

    def test_metrics_are_not_for_all(self) -> None:
        """Only one namespace may reach the metrics port (Metrics endpoint, 1)."""
        self.assertEqual("0.0.0.0", configuration().metrics_bind)
        rules = {rule["ports"][0]["port"]: rule.get("from") for rule in self.rules()}
        (monitoring,) = rules.pop("metrics")
        self.assertEqual(["namespaceSelector"], list(monitoring))
        self.assertEqual({"http": None}, rules)
        exposed = [row["name"] for row in get_document("Service")["spec"]["ports"]]
        self.assertEqual(["http"], exposed)

    def test_ingress(self) -> None:
        """The ingress sends one URL to one pod, unbuffered, with timeouts longer than a render."""
        ingress = get_document("Ingress")
        notes = {
            name.removeprefix("nginx.ingress.kubernetes.io/"): value
            for name, value in ingress["metadata"]["annotations"].items()
        }
        self.assertEqual(("$uri", "off"), (notes["upstream-hash-by"], notes["proxy-buffering"]))
        self.assertEqual("false", notes["enable-access-log"])
        # deploy/nginx retries under the same conditions.
        self.assertEqual("error timeout invalid_header", notes["proxy-next-upstream"])
        self.assertEqual(notes["proxy-read-timeout"], notes["proxy-next-upstream-timeout"])
        self.assertGreater(int(notes["proxy-read-timeout"]), 2 * configuration().render_timeout)
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        service = path["backend"]["service"]
        ports = {row["name"] for row in get_document("Service", service["name"])["spec"]["ports"]}
        self.assertIn(service["port"]["name"], ports)

    def test_monitoring(self) -> None:
        """Prometheus finds each pod once, under the job name that the rules use."""
        monitor = get_document("ServiceMonitor")["spec"]
        labels = monitor["selector"]["matchLabels"].items()
        services = [document for document in all_documents() if document["kind"] == "Service"]
        (service,) = (each for each in services if labels <= each["metadata"]["labels"].items())
        (endpoint,) = monitor["endpoints"]
        self.assertIn(endpoint["port"], {row["name"] for row in service["spec"]["ports"]})
        (job,) = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text())["scrape_configs"]
        self.assertEqual(job["job_name"], service["metadata"]["labels"][monitor["jobLabel"]])

    def test_rules(self) -> None:
        """The documented command creates a PrometheusRule from the rules."""
        comment = [
            line.removeprefix("#").strip()
            for line in (FOLDER / "servicemonitor.yaml").read_text().splitlines()
            if line.startswith("#")
        ]
        (command,) = re.findall(
            r"^\((.*)\) \| kubectl apply -f -$", "\n".join(comment), re.M | re.S
        )
        rule = yaml.safe_load(output_of("sh", "-euc", command, cwd=PROJECT))
        self.assertEqual("PrometheusRule", rule["kind"])
        for field in ("apiVersion", "metadata"):
            self.assertEqual(get_document("ServiceMonitor")[field], rule[field])
        self.assertEqual(yaml.safe_load((PROMETHEUS / "rules.yml").read_text()), rule["spec"])
