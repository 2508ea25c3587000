"""The manifests: valid, as strict as they say, and in agreement with the service."""

from __future__ import annotations

import re
import subprocess
from copy import deepcopy
from typing import Any

import kubernetes_validate
import yaml
from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy.config import VARIABLES, Config, load
from audioproxy.service import make_resource
from tests.deploy.promql import PROMETHEUS
from tests.deploy.test_container import final
from tests.support.service import PROJECT, reactor

FOLDER = PROJECT / "deploy/kubernetes"

#: The oldest release that the manifests are for, and the newest that there are schemas of.
RELEASES = ("1.28", kubernetes_validate.latest_version())

#: Of projects beside Kubernetes, whose schemas are not Kubernetes's.
FOREIGN = ("Kustomization", "ServiceMonitor")

#: What a person fills in, of the right form.
SECRETS = {
    "AP_KEY": "0" * 64,
    "AP_SALT": "0" * 64,
    "AWS_ACCESS_KEY_ID": "identity",
    "AWS_SECRET_ACCESS_KEY": "secret",
}

Manifest = dict[str, Any]


def manifests() -> dict[str, list[Manifest]]:
    """Return the documents of each file."""
    return {
        path.name: list(yaml.safe_load_all(path.read_text()))
        for path in sorted(FOLDER.glob("*.yaml"))
    }


def every() -> list[Manifest]:
    """Return all documents."""
    return [document for documents in manifests().values() for document in documents]


def only(kind: str, name: str = "audioproxy") -> Manifest:
    """Return the document of a kind and a name."""
    (found,) = (
        document
        for document in every()
        if (document["kind"], document.get("metadata", {}).get("name")) == (kind, name)
    )
    return found


def pod() -> Manifest:
    """Return the specification of the pods."""
    specification: Manifest = only("Deployment")["spec"]["template"]["spec"]
    return specification


def container() -> Manifest:
    """Return the only container of the pods."""
    (found,) = pod()["containers"]
    return dict(found)


def settings() -> dict[str, str]:
    """Return the environment of the container, with what a person fills in."""
    plain = {row["name"]: row["value"] for row in container()["env"]}
    configured: dict[str, str] = only("ConfigMap")["data"]
    return plain | configured | SECRETS


def configuration() -> Config:
    """Return what the service makes of its environment."""
    config, _ = load(settings())
    return config


def gigabytes(quantity: str) -> int:
    """Return a quantity of bytes that is spelled in Gi."""
    match = re.fullmatch(r"(\d+)Gi", quantity)
    assert match is not None, quantity
    return int(match[1]) * 2**30


def selected(labels: dict[str, str], kind: str) -> list[str]:
    """Return the names of all of a kind that have some labels."""
    return [
        document["metadata"]["name"]
        for document in every()
        if document["kind"] == kind and labels.items() <= document["metadata"]["labels"].items()
    ]


class SchemaTests(SynchronousTestCase):
    """A cluster takes them."""

    def test_schemas(self) -> None:
        """Every manifest is what Kubernetes expects, with no field that it does not know."""
        for document in every():
            if document["kind"] not in FOREIGN:
                for release in RELEASES:
                    kubernetes_validate.validate(document, release, strict=True)

    def test_schemas_see(self) -> None:
        """A field that is misspelt, or of another type, would be found."""
        for change in ({"terminationGracePeriod": 50}, {"terminationGracePeriodSeconds": "50"}):
            wrong = deepcopy(only("Deployment"))
            wrong["spec"]["template"]["spec"] |= change
            with self.assertRaises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, RELEASES[-1], strict=True)

    def test_all_are_applied(self) -> None:
        """What is applied together exists; the rest is optional, or the reader's to fill in."""
        (kustomization,) = manifests()["kustomization.yaml"]
        optional = {"ingress.yaml", "servicemonitor.yaml", "secret.example.yaml"}
        applied = set(kustomization["resources"])
        self.assertEqual(applied | optional | {"kustomization.yaml"}, manifests().keys())
        self.assertEqual(set(), applied & optional)

    def test_one_namespace(self) -> None:
        """All of them are in one namespace, which takes pods of the strictest standard only."""
        (kustomization,) = manifests()["kustomization.yaml"]
        namespace = only("Namespace")["metadata"]
        self.assertEqual(kustomization["namespace"], namespace["name"])
        self.assertEqual("restricted", namespace["labels"]["pod-security.kubernetes.io/enforce"])
        for document in every():
            if "namespace" in document.get("metadata", {}):
                self.assertEqual(namespace["name"], document["metadata"]["namespace"])

    def test_image(self) -> None:
        """The image is this version's."""
        (kustomization,) = manifests()["kustomization.yaml"]
        (image,) = kustomization["images"]
        self.assertEqual(container()["image"], image["name"])
        self.assertEqual(audioproxy.__version__, image["newTag"])


class SettingsTests(SynchronousTestCase):
    """The service understands what it is told."""

    def test_it_loads(self) -> None:
        """With the secrets filled in, the configuration has no fault and raises no warning."""
        config, warnings = load(settings())
        self.assertEqual(((), True), (warnings, config.variant_s3.configured))

    def test_every_name_is_known(self) -> None:
        """Each key is a setting of the service, and none is given twice (D33)."""
        told, secret = only("ConfigMap")["data"], only("Secret")["stringData"]
        self.assertEqual(set(), (told.keys() | secret.keys()) - set(VARIABLES))
        self.assertEqual(set(), told.keys() & secret.keys())

    def test_no_secret_is_told(self) -> None:
        """The example names what is secret, and holds none of it."""
        secret = only("Secret")["stringData"]
        self.assertEqual(SECRETS.keys(), secret.keys())
        self.assertEqual({""}, set(secret.values()))

    def test_names_of_groups(self) -> None:
        """The pods take their settings from the ConfigMap and the Secret that are here."""
        sources = [next(iter(row.items())) for row in container()["envFrom"]]
        for (kind, source), wanted in zip(sources, ("ConfigMap", "Secret"), strict=True):
            self.assertEqual(f"{wanted.lower()}ref", kind.lower())
            only(wanted, source["name"])

    def test_one_render_for_each_cpu(self) -> None:
        """A pod renders as much at a time as it has asked CPUs for."""
        requested = container()["resources"]["requests"]["cpu"]
        self.assertEqual(int(requested), configuration().max_concurrency)

    def test_room(self) -> None:
        """Temporary files have a volume of their own, with room for renders and sources (D46)."""
        config = configuration()
        (mount,), (volume,) = container()["volumeMounts"], pod()["volumes"]
        self.assertEqual(mount["name"], volume["name"])
        self.assertEqual(settings()["TMPDIR"], mount["mountPath"])
        needed = config.max_concurrency * (config.max_src_bytes + config.max_variant_bytes)
        self.assertGreater(gigabytes(volume["emptyDir"]["sizeLimit"]), 2 * needed)


class PodTests(SynchronousTestCase):
    """The pods start, live and end as the service does."""

    def test_probes(self) -> None:
        """Liveness asks /health and readiness /ready, at the service's own port (nodes, 4)."""
        ports = {row["name"]: row["containerPort"] for row in container()["ports"]}
        config = configuration()
        self.assertEqual({"http": config.port, "metrics": config.metrics_port}, ports)
        for probe, path in (
            ("startupProbe", "/health"),
            ("livenessProbe", "/health"),
            ("readinessProbe", "/ready"),
        ):
            self.assertEqual({"path": path, "port": "http"}, container()[probe]["httpGet"])

    def test_time_to_end(self) -> None:
        """A pod that is told to go has time for its last renders, and for the balancer (D39)."""
        words = container()["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual("sleep", words[0])
        drain = make_resource(configuration(), reactor).patience
        self.assertGreater(pod()["terminationGracePeriodSeconds"], int(words[1]) + drain + 10)

    def test_readiness_is_lost_late(self) -> None:
        """A Service has nobody for stored variants either when no pod is ready (nodes, 4).

        So a pod stays ready until its queue is nearly full.
        """
        config = configuration()
        self.assertGreater(config.ready_queue_threshold, 0.8 * config.queue_size)
        self.assertLess(config.ready_queue_threshold, config.queue_size)

    def test_no_rights(self) -> None:
        """It runs as the image's user, without rights, and writes to nothing but its volume."""
        user, group = map(int, final("USER")[-1].split(":"))
        rights = pod()["securityContext"]
        self.assertEqual(
            (True, user, group, {"type": "RuntimeDefault"}),
            (
                rights["runAsNonRoot"],
                rights["runAsUser"],
                rights["runAsGroup"],
                rights["seccompProfile"],
            ),
        )
        self.assertEqual(
            {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            container()["securityContext"],
        )
        self.assertFalse(pod()["automountServiceAccountToken"])

    def test_no_settings_of_others(self) -> None:
        """No Service of the namespace becomes a setting of the pods."""
        self.assertFalse(pod()["enableServiceLinks"])


class NetworkTests(SynchronousTestCase):
    """Who reaches the pods, and how."""

    def test_selectors(self) -> None:
        """Whatever selects pods selects these."""
        labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
        (spread,) = pod()["topologySpreadConstraints"]
        self.assertEqual(labels, spread["labelSelector"]["matchLabels"])
        for selector in (
            only("Deployment")["spec"]["selector"]["matchLabels"],
            only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
            only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
            only("Service")["spec"]["selector"],
            only("Service", "audioproxy-nodes")["spec"]["selector"],
        ):
            self.assertEqual(labels, selector)

    def test_names_of_ports(self) -> None:
        """Each port that is named is one of the pods'."""
        ports = {row["name"] for row in container()["ports"]}
        named = [
            row["targetPort"]
            for document in every()
            if document["kind"] == "Service"
            for row in document["spec"]["ports"]
        ]
        named += [row["port"] for rule in self.rules() for row in rule["ports"]]
        self.assertEqual(ports, set(named))

    def rules(self) -> list[Manifest]:
        """Return who may come in."""
        found: list[Manifest] = only("NetworkPolicy")["spec"]["ingress"]
        return found

    def test_metrics_are_not_for_all(self) -> None:
        """The metrics listen to the outside, and only one namespace gets there (Metrics, 1)."""
        self.assertEqual("0.0.0.0", configuration().metrics_bind)
        rules = {rule["ports"][0]["port"]: rule.get("from") for rule in self.rules()}
        (monitoring,) = rules.pop("metrics")
        self.assertEqual(["namespaceSelector"], list(monitoring))
        self.assertEqual({"http": None}, rules)
        exposed = [row["name"] for row in only("Service")["spec"]["ports"]]
        self.assertEqual(["http"], exposed)

    def test_scaling(self) -> None:
        """There are enough pods that one may go, and the Deployment does not say how many."""
        scaling = only("HorizontalPodAutoscaler")["spec"]
        only(scaling["scaleTargetRef"]["kind"], scaling["scaleTargetRef"]["name"])
        self.assertNotIn("replicas", only("Deployment")["spec"])
        spare = only("PodDisruptionBudget")["spec"]["maxUnavailable"]
        self.assertGreater(scaling["minReplicas"], spare)

    def test_ingress(self) -> None:
        """One URL goes to one pod, unbuffered, and whoever waits waits longer than a render."""
        ingress = only("Ingress")
        notes = {
            name.removeprefix("nginx.ingress.kubernetes.io/"): value
            for name, value in ingress["metadata"]["annotations"].items()
        }
        self.assertEqual(("$uri", "off"), (notes["upstream-hash-by"], notes["proxy-buffering"]))
        self.assertEqual("false", notes["enable-access-log"])
        # As for the nginx of deploy/nginx.
        asked_again = ("error timeout invalid_header", notes["proxy-read-timeout"])
        self.assertEqual(
            asked_again, (notes["proxy-next-upstream"], notes["proxy-next-upstream-timeout"])
        )
        self.assertGreater(int(notes["proxy-read-timeout"]), 2 * configuration().render_timeout)
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        service = path["backend"]["service"]
        ports = {row["name"] for row in only("Service", service["name"])["spec"]["ports"]}
        self.assertIn(service["port"]["name"], ports)

    def test_monitoring(self) -> None:
        """Prometheus finds each pod once, under the job that the rules look for."""
        monitor = only("ServiceMonitor")["spec"]
        (name,) = selected(monitor["selector"]["matchLabels"], "Service")
        service = only("Service", name)
        (endpoint,) = monitor["endpoints"]
        self.assertIn(endpoint["port"], {row["name"] for row in service["spec"]["ports"]})
        (job,) = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text())["scrape_configs"]
        self.assertEqual(job["job_name"], service["metadata"]["labels"][monitor["jobLabel"]])

    def test_rules(self) -> None:
        """The command for a PrometheusRule makes one, of the rules as they are."""
        comment = [
            line.removeprefix("#").strip()
            for line in (FOLDER / "servicemonitor.yaml").read_text().splitlines()
            if line.startswith("#")
        ]
        (command,) = re.findall(
            r"^\((.*)\) \| kubectl apply -f -$", "\n".join(comment), re.M | re.S
        )
        made = subprocess.run(
            ["sh", "-euc", command], cwd=PROJECT, capture_output=True, check=True, timeout=30
        )
        rule = yaml.safe_load(made.stdout)
        self.assertEqual("PrometheusRule", rule["kind"])
        for field in ("apiVersion", "metadata"):
            self.assertEqual(only("ServiceMonitor")[field], rule[field])
        self.assertEqual(yaml.safe_load((PROMETHEUS / "rules.yml").read_text()), rule["spec"])
