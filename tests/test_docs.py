"""The documentation agrees with the code."""

from __future__ import annotations

import contextlib
import io
import json
import re
from datetime import date
from decimal import Decimal
from itertools import chain, product
from pathlib import Path

from twisted.python.reflect import ModuleNotFound, ObjectNotFound, namedAny
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import errors
from audioproxy.cli.purge_calls import CALLS
from audioproxy.cli.url_input import parse_url
from audioproxy.config import VARIABLES
from audioproxy.config.environment import load
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.segments import split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.sources import SCHEMES, LocalSource, read_source
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.trim import trim_range
from audioproxy.media.inputs import DEMUXERS
from audioproxy.media.lengths.containers import READERS
from audioproxy.process.warm import MOST_FORKS
from audioproxy.web.metrics_resource import exposition
from bench.blocks import BLOCK
from tests.observe.test_metrics import full
from tests.support.ceph import Ceph
from tests.support.juicefs import JuiceFS
from tests.support.probes import Probe
from tests.support.rclone import Rclone
from tests.support.s3 import Gateway
from tests.support.swift import Swift
from tools.site_api import MODULES, reference

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {page.stem: page.read_text() for page in (ROOT / "docs").glob("*.md")}

#: Markdown link within the project. Groups: its file, empty for the same file; its anchor, if any.
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")

#: A measured speed, time or ratio, such as "19,000 requests a second".
SPEED = re.compile(
    r"\d(?:[\d.,]*\d)?(?: [`\w]+){0,4} (?:a|per) second\b|\d ?(?:\w+/s|µs|us|microseconds)\b"
    r"|(?:\d|two|three|ten|twenty) times (?:faster|slower|as (?:long|fast|many)|real time)"
    r"|\ba (?:third|fifth|seventh|eighth|tenth) of (?:the|that|this)(?: CPU)? time\b"
)

#: Base URL of the examples in the URL reference.
SERVICE = "http://127.0.0.1:4000/insecure"


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of the table whose first heading is ``first``, without header lines."""
    tables = re.findall(r"(?:^\|.*\n?)+", PAGES[page], re.MULTILINE)
    (table,) = [table for table in tables if table.startswith(f"| {first} |")]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for line in table.splitlines()[2:]
    ]


def code(text: str, language: str) -> list[str]:
    """Return the code blocks of ``text`` in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(example: str) -> list[str]:
    """Run a Python example and return the lines that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {})
    return printed.getvalue().splitlines()


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and site generators spell it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


class ReferenceTests(SynchronousTestCase):
    """Completeness of the tables."""

    def test_every_variable_is_explained(self) -> None:
        """The configuration table lists exactly the variables that the service reads (D33)."""
        table = rows("configuration", "Variable")
        named = re.findall(r"`(A(?:P|WS)_\w+)`", " ".join(row[0] for row in table))
        self.assertEqual(sorted(VARIABLES), sorted(named))

    def test_every_error_is_explained(self) -> None:
        """The URL reference lists every error with its status and its Cache-Control (D20)."""
        table = rows("urls", "Status")
        listed = {(int(row[0]), row[1].strip("`"), row[3].strip("`")) for row in table}
        raised = {
            (error.status, error.code, error.cache_control)
            for error in vars(errors).values()
            if isinstance(error, type)
            and issubclass(error, errors.Refusal)
            and error is not errors.Refusal
        }
        self.assertEqual(raised, listed)

    def test_every_metric_is_explained(self) -> None:
        """The operations page lists exactly the metrics that the service exposes (Metrics)."""
        text = exposition(full().registry).decode()
        exposed = re.findall(r"^# TYPE (audio_proxy_\w+)", text, re.MULTILINE)
        named = " ".join(row[0] for row in rows("operations", "Metric"))
        self.assertEqual(sorted(exposed), sorted(re.findall(r"`(audio_proxy_\w+)`", named)))

    def test_every_option_is_explained(self) -> None:
        """The URL reference explains every option and has an example of it (Option classes)."""
        table = [re.match(r"\[`(\w+)`\]\(#(.*)\)", row[0]) for row in rows("urls", "Option")]
        links = {match[1]: match[2] for match in table if match}
        self.assertEqual(set(VariantOptions.__dataclass_fields__) | {"exp"}, set(links))
        sections = re.split(r"^###? ", PAGES["urls"], flags=re.MULTILINE)
        texts = {anchor(text.partition("\n")[0]): text for text in sections}
        for key, name in links.items():
            self.assertIn(f"/{key}:", "".join(re.findall(f"{SERVICE}(.*)", texts[name])), key)

    def test_every_format_is_explained(self) -> None:
        """The URL reference lists every output format with its Content-Type and bounds (D6)."""
        table = {row[0].strip("`"): row[1] for row in rows("urls", "Value")}
        self.assertEqual(list(FORMATS), list(table))
        options = {row[0].split("`")[1]: row[1] for row in rows("urls", "Option")}
        self.assertEqual(list(FORMATS), re.findall(r"`(\w+)`", options["f"]))
        for token, form in FORMATS.items():
            self.assertIn(f"`{VariantOptions(f=token).content_type}`", table[token], token)
            for key, bounds in (("br", form.br), ("q", form.q)):
                stated = re.search(rf"\b{token}(?: and \w+)? (-?[\d.]+)-([\d.]+)", options[key])
                expected = bounds and tuple(map(str, bounds))
                self.assertEqual(expected, stated and stated.groups(), (key, token))

    def test_every_container_in_sources(self) -> None:
        """The page on sources has each container, where `t` seeks, and known lengths (D43, D57)."""
        table = rows("sources", "Container")
        # The service itself reads the header of NIST SPHERE.
        named = {name for row in table for name in re.findall(r"`(\w+)`", row[1])}
        self.assertEqual({*DEMUXERS.split(","), "nistsphere"}, named)
        codecs = {"all": "?", "others": "?", "pcm": "pcm_s16le", "a-law": "pcm_alaw"}
        trim, _ = parse_options((b"t:100",))
        for _, containers, listed, start, length in table:
            words = listed.lower().partition(", such as")[0].replace("µ-law", "pcm_mulaw")
            for container, word in product(re.findall(r"`(\w+)`", containers), words.split(", ")):
                codec = codecs.get(word, word.replace("-", ""))
                probe = Probe(container, codec, Decimal(1000), exact=True, seekable=True)
                seeks = "seeks" if trim_range(trim, probe).seek > 0 else "decodes"
                found = "finds" if Needs.of(trim, probe).point else seeks
                self.assertEqual(found, start, (container, codec))
                kind = codec.partition("_")[0]
                reader = READERS.get((container, kind)) or READERS.get((container, None))
                if container == "nistsphere":
                    self.assertEqual("known", length)
                    continue
                self.assertEqual(reader is not None, length != "unknown", (container, codec))

    def test_every_format_in_browsers(self) -> None:
        """The page on browsers lists every format that they play."""
        sounding = [token for token, form in FORMATS.items() if form.in_browsers]
        self.assertEqual(sounding, [row[0] for row in rows("browsers", "Format")])

    def test_every_source_is_explained(self) -> None:
        """The URL reference has each kind of source in a spelling that is accepted (D15)."""
        parts = {"host": "host.example", "base64url": "bG9jYWw6Ly9hLm1wMw"}
        kinds = set()
        for row in rows("urls", "Source"):
            spelling = re.sub(
                r"<(\w+)>", lambda match: parts.get(match[1], "x1y"), row[0].strip("`")
            )
            form, _, source = spelling.partition("/")
            kinds.add((form, type(read_source(form.encode(), source.encode()))))
        expected = {("plain", kind) for kind in SCHEMES.values()} | {("enc", LocalSource)}
        self.assertEqual(expected, kinds)

    def test_every_purge_call_is_explained(self) -> None:
        """The page on caches has each cache that removes what has a tag, and its header (D59)."""
        expected = [[call.cache, f"`{call.header}`"] for call in CALLS]
        self.assertEqual(expected, rows("caches", "Cache or CDN"))

    def test_every_alert_is_explained(self) -> None:
        """Every alert links to a section of the operations page that explains it."""
        rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        links = re.findall(r"runbook_url: https://docs.example/operations.html#(\S+)", rules)
        told = PAGES["operations"].split("\n## Alerts\n")[1]
        self.assertEqual(alerts, re.findall(r"^### (\w+)$", told, re.MULTILINE))
        self.assertEqual([anchor(alert) for alert in alerts], links)


class ExampleTests(SynchronousTestCase):
    """Validity of the examples."""

    def test_urls(self) -> None:
        """The service accepts every example URL of the URL reference and the cookbook (D1)."""
        examples = re.findall(f"{SERVICE}(/\\S+)", PAGES["urls"] + PAGES["cookbook"])
        self.assertGreater(len(examples), 30)
        for example in examples:
            target = split_target(example.encode())
            assert target is not None, example
            read_source(target.form, target.source)
            if target.info:
                self.assertEqual((), target.options)
            elif target.options:
                parse_options(target.options)

    def test_providers(self) -> None:
        """The service accepts the settings of each provider, and every policy and rule is JSON.

        The URLs of redirects outlive a listener's pause.
        """
        secrets = {"AP_KEY": "00" * 32, "AP_SALT": "01"}
        settings = code(PAGES["providers"], "ini")
        self.assertEqual(10, len(settings))
        for text in settings:
            lines = dict(line.split("=", 1) for line in text.splitlines())
            config, warnings = load(secrets | lines)
            expires_early = config.serve_mode == "redirect" and config.presign_ttl != 21_600
            self.assertEqual((False, ()), (expires_early, warnings), text)
        policy = (ROOT / "deploy/compose/policy.json").read_text()
        documents = [json.loads(text) for text in code(PAGES["providers"], "json")]
        self.assertIn(json.loads(policy), documents)

    def test_shown_by(self) -> None:
        """Every provider has a row: with a date and tests that exist, or with neither.

        It has the checks of a bucket that fail in these tests.
        """
        shown = rows("providers", "Provider")
        headings = re.findall(r"^## (.+)$", PAGES["providers"], re.MULTILINE)
        self.assertLessEqual({row[0] for row in shown}, {*headings})
        self.assertEqual(len(code(PAGES["providers"], "ini")), len(shown))
        gateways = {"MinIO": JuiceFS, "Ceph": Ceph, "OpenStack Swift": Swift, "rclone": Rclone}
        for provider, proof, failing, day in shown:
            names = re.findall(r"`(tests\.[\w.]+)`", proof)
            self.assertTrue(all(map(exists, names)), provider)
            self.assertEqual(bool(names), bool(day and date.fromisoformat(day)), provider)
            gateway = gateways.get(provider, Gateway)
            self.assertEqual(gateway.fails, {*re.findall("`([^`]+)`", failing)}, provider)

    def test_same_source(self) -> None:
        """The three example spellings of one source name the same source."""
        spellings = re.findall(
            f"{SERVICE}/(plain|enc)/(\\S+)", PAGES["urls"].split("## Sources")[1]
        )
        self.assertEqual(3, len(spellings))
        self.assertEqual(1, len({read_source(a.encode(), b.encode()) for a, b in spellings}))

    def test_signing(self) -> None:
        """Every signing example prints URLs that the service accepts (Authentication, 1).

        `tests.examples.test_quickstart` runs the example of the README, and
        `tests.urls.test_signing_page_live` those of the page on signing.
        """
        examples = code(PAGES["urls"], "python") + code(PAGES["embedding"], "python")[-1:]
        self.assertEqual(2, len(examples))
        for example in examples:
            printed = run(example)
            self.assertTrue(printed, example)
            for url in printed:
                path = parse_url(url)
                self.assertTrue(verify(bytes(32), b"\x01", path.signed, path.signature), url)

    def test_targets(self) -> None:
        """Every target of make that a page names is in the Makefile."""
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        texts = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "NEWS.md")]
        for text in (*texts, README, *PAGES.values()):
            prose = re.sub(r"\s+", " ", text)
            self.assertEqual(set(), set(re.findall(r"`(?:\S+ )?make ([a-z-]+)", prose)) - targets)
            commands = "\n".join(code(text, "(?:sh)?"))
            called = re.findall(r"^(?:\S+=\S+ )*make ([a-z-]+)", commands, re.MULTILINE)
            self.assertEqual(set(), set(called) - targets)

    def test_embedding(self) -> None:
        """The embedding page shows the programs that `tests.examples.test_programs` runs."""
        shown = code(PAGES["embedding"], "python")
        for name, text in zip(("embed", "embed_fastapi"), shown, strict=False):
            self.assertTrue((ROOT / f"examples/{name}.py").read_text().endswith(f"\n\n{text}"))


class ApiTests(SynchronousTestCase):
    """The reference that the site adds to the page of the API."""

    def test_every_name_is_explained(self) -> None:
        """The reference has every public name of the modules, without the markup of docstrings."""
        text = "\n".join(reference())
        for module in MODULES:
            self.assertIn(f"`{module}`", PAGES["api"])
            for name in namedAny(module).__all__:
                self.assertIn(f"\n### `{name}`\n", text)
        self.assertNotRegex(text, r"(?m)^ *:\w|::$")


class LinkTests(SynchronousTestCase):
    """Links between the pages."""

    def test_every_page_is_one_click_away(self) -> None:
        """The README links to each page of the documentation."""
        linked = {file for file, _ in LINK.findall(README)}
        self.assertEqual(set(), {f"docs/{name}.md" for name in PAGES} - linked)

    def test_links_lead_somewhere(self) -> None:
        """Every link within the project leads to an existing file and heading."""
        pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for folder in ("examples", "examples/clients", "deploy"):
            pages += (ROOT / folder).glob("*/README.md")
        for page in pages:
            for file, name in LINK.findall(page.read_text()):
                place = (page.parent / file).resolve() if file else page
                self.assertTrue(place.exists(), f"{page.name}: {file}")
                if name:
                    text = re.sub(r"^```.*?^```", "", place.read_text(), flags=re.M | re.S)
                    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
                    self.assertIn(name, map(anchor, headings), f"{page.name}: {file}#{name}")

    def test_headings(self) -> None:
        """Headings are the tasks and things that people search, and not questions."""
        for name, text in PAGES.items():
            prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
            self.assertEqual([], re.findall(r"^#+ .*\?$", prose, re.M), name)


class FigureTests(SynchronousTestCase):
    """Figures of the benchmarks, which `make bench` and `make quality` write between marks."""

    def test_one_value_on_every_page(self) -> None:
        """A figure is the same wherever it is shown."""
        headlines = {
            block[3] for text in (README, PAGES["index"]) for block in BLOCK.finditer(text)
        }
        self.assertEqual(1, len(headlines))
        (block,) = BLOCK.finditer(PAGES["performance"])
        shown = [line for line in block[3].splitlines() if line.startswith("| ")][1:]
        self.assertGreater(len(shown), 3)
        for row in shown:
            self.assertIn(f"\n{row}", PAGES["benchmarks"])

    def test_no_figure_is_typed(self) -> None:
        """Speeds and ratios stand between marks alone; other text links to them."""
        texts = {name: BLOCK.sub("", text) for name, text in PAGES.items()}
        texts |= {"README": BLOCK.sub("", README), "NEWS": (ROOT / "NEWS.md").read_text()}
        for name, text in texts.items():
            prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
            self.assertEqual([], SPEED.findall(prose), name)


class SecurityTests(SynchronousTestCase):
    """Threat table of the security page."""

    def test_forks(self) -> None:
        """The pages say after how many forks memory has another layout."""
        for page in "security", "performance":
            self.assertIn(f" after {MOST_FORKS} forks", PAGES[page])

    def test_every_proof_exists(self) -> None:
        """Every test that the threat table and the page on podcasts name exists."""
        rows = [
            line
            for line in PAGES["security"].splitlines()
            if line.startswith("| ") and "---" not in line
        ]
        proofs = [re.findall(r"`(tests\.[\w.]+)`", row) for row in rows]
        self.assertGreater(sum(map(len, proofs)), 30)
        for row, names in zip(rows, proofs, strict=True):
            self.assertTrue(names or row.endswith("| Shown by |"), row)
        podcasts = re.findall(r"`(tests\.[\w.]+)`", PAGES["podcasts"])
        for name in (*chain(*proofs), *podcasts):
            self.assertTrue(exists(name), name)


def exists(name: str) -> bool:
    """Return whether a dotted name leads to a module, or to an object in a module."""
    try:
        namedAny(name)
    except (AttributeError, ModuleNotFound, ObjectNotFound):
        return False
    return True
