"""Settings from the environment: defaults, refusals, and all problems reported together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import VARIABLES, BucketStore, Config, ConfigError, FileStore, S3Config, load
from audioproxy.config.values import bucket, parse_origin
from audioproxy.errors import NotFound
from audioproxy.grammar.sources import S3Source, read_source
from tests.support.strategies import DETERMINISTIC


def variables(text: str) -> dict[str, str]:
    """Return environment variables that are written ``NAME=value``, separated by blanks."""
    return dict(word.split("=", 1) for word in text.split())


KEY, SALT = "a1" * 32, "5a17"
SIGNED = {"AP_KEY": KEY, "AP_SALT": SALT}
SHARED = variables(
    "AWS_ACCESS_KEY_ID=shared-id AWS_SECRET_ACCESS_KEY=shared-secret AWS_REGION=eu-west-1"
)
OWN = variables(
    "AP_VARIANT_S3_ACCESS_KEY_ID=own-id AP_VARIANT_S3_SECRET_ACCESS_KEY=own-secret"
    " AP_VARIANT_S3_REGION=us-east-2"
)
KNOWN = sorted(VARIABLES)

#: Ends of the messages that refuse a key or a salt.
KEY_REQUIRED = (
    "at least 32 bytes written as hexadecimal are required, such as `openssl rand -hex 32` prints"
)
SALT_REQUIRED = (
    "at least 1 byte written as hexadecimal is required, such as `openssl rand -hex 16` prints"
)


class ConfigCase(SynchronousTestCase):
    """Test case with a signing environment: one with a key and a salt."""

    def config(self, **variables: str) -> Config:
        """Load the signing environment with these additional variables."""
        return load(SIGNED | variables)[0]

    def warnings(self, **variables: str) -> tuple[str, ...]:
        """Return the warnings of the signing environment with these additional variables."""
        return tuple(map(str, load(SIGNED | variables)[1]))

    def problems(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the problems of an environment, and require each to be a well-formed line."""
        problems = tuple(map(str, self.assertRaises(ConfigError, load, environ).problems))
        for problem in problems:
            name, colon, text = problem.partition(": ")
            self.assertIn(name, KNOWN)
            self.assertTrue(colon and text and problem.isascii() and problem.isprintable(), problem)
        return problems

    def problem(self, variable: str, **variables: str) -> str:
        """Return the only problem of the signing environment with these variables.

        :param variable: the one that the problem has to name.
        """
        problems = self.problems(SIGNED | variables)
        self.assertEqual([problem.partition(":")[0] for problem in problems], [variable], problems)
        return problems[0]

    def assert_refused(self, variable: str, values: Iterable[str], wanted: str) -> None:
        """Require each value to be the only problem, with a message that says what is required."""
        for value in values:
            self.assertIn(wanted, self.problem(variable, **{variable: value}))

    def file(self) -> str:
        """Make a readable regular file and return its path."""
        path = Path(self.mktemp()).resolve()
        path.touch()
        return str(path)

    def folder(self) -> str:
        """Make a directory and return its path."""
        path = Path(self.mktemp()).resolve()
        path.mkdir()
        return str(path)

    def deny_access(self, path: str, denied: int) -> None:
        """Patch `os.access`, which grants root everything, to deny a mode of a path."""
        granted = os.access

        def access(requested: str, mode: int) -> bool:
            return not (requested == path and mode & denied) and granted(requested, mode)

        self.patch(os, "access", access)


class DefaultsTests(ConfigCase):
    """Defaults of unset variables."""

    def test_defaults(self) -> None:
        """A key and a salt suffice, and all other settings have their default (Limits; D30)."""
        affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        cpus = len(affinity(0))
        s3 = S3Config(None, "virtual", None, None, None, None, None)
        defaults: dict[str, Any] = (
            {"source_s3": s3, "variant_s3": s3}
            | {"allow_insecure": False, "port": 4000, "local_root": None, "variant_store": None}
            | {"serve_mode": "redirect", "presign_ttl": 300, "source_allowlist": None}
            | {"allow_origin": None, "log_level": "info", "metrics_bind": "127.0.0.1"}
            | {"metrics_port": 9568, "max_src_bytes": 2 * 10**9, "max_variant_bytes": 2 * 10**9}
            | {"variant_store_max_bytes": None}
            | {"bind": None, "cache_tag_header": None, "drain_timeout": 30}
            | {"max_child_memory": 2**30, "previous_key": (), "previous_salt": ()}
            | {"require_cell": False, "warm_programs": True}
            | {"max_concurrency": cpus, "max_probe_concurrency": 4 * cpus, "queue_size": 32}
            | {"ready_queue_threshold": 16, "render_timeout": 300, "probe_timeout": 10}
        )
        secrets = {"key": bytes.fromhex(KEY), "salt": bytes.fromhex(SALT)}
        config, warnings = load(SIGNED)
        self.assertEqual((), warnings)
        self.assertEqual(config, Config(**secrets, **defaults))

    def test_in_code(self) -> None:
        """A Config built in code has the same defaults as one from the environment."""
        self.assertEqual(Config(key=bytes.fromhex(KEY), salt=bytes.fromhex(SALT)), self.config())
        endpoint = S3Config("https://s3.example")
        built = Config(allow_insecure=True, max_src_bytes=7, source_s3=endpoint)
        self.assertEqual(built.variant_s3, S3Config("https://s3.example", "path"))
        self.assertEqual(replace(built, port=1).max_variant_bytes, 7)

    def test_outbound_requests(self) -> None:
        """Buckets and https sources need outbound requests; local files need none."""
        identity = S3Config(access_key_id="id", secret_access_key="secret", region="eu-west-1")
        local: dict[str, Any] = {"local_root": "/", "variant_store": FileStore("/")}
        for settings, outbound in (
            (local, False),
            (local | {"source_allowlist": ("https://a.example/",)}, True),
            (local | {"source_s3": identity}, True),
            (local | {"variant_store": BucketStore("b"), "variant_s3": identity}, True),
        ):
            config = Config(allow_insecure=True, **settings)
            self.assertEqual(config.has_outbound_requests, outbound, settings)

    def test_empty_is_unset(self) -> None:
        """An empty variable counts as unset, except AP_SOURCE_ALLOWLIST (D49)."""
        empty = dict.fromkeys(KNOWN, "") | {"AP_ANYTHING": ""}
        del empty["AP_SOURCE_ALLOWLIST"]
        self.assertEqual(load(empty | SIGNED), load(SIGNED))

    def test_derived_limits(self) -> None:
        """A default that depends on another limit follows that limit (Limits; D50)."""
        for field, value, settings in (
            ("max_variant_bytes", 5, "AP_MAX_SRC_BYTES=5"),
            ("max_variant_bytes", 9, "AP_MAX_SRC_BYTES=5 AP_MAX_VARIANT_BYTES=9"),
            ("max_probe_concurrency", 12, "AP_MAX_CONCURRENCY=3"),
            ("max_probe_concurrency", 1, "AP_MAX_CONCURRENCY=3 AP_MAX_PROBE_CONCURRENCY=1"),
            ("ready_queue_threshold", 4, "AP_QUEUE_SIZE=9"),
            ("ready_queue_threshold", 1, "AP_QUEUE_SIZE=1"),
            ("ready_queue_threshold", 0, "AP_QUEUE_SIZE=0"),
            ("ready_queue_threshold", 0, "AP_READY_QUEUE_THRESHOLD=0"),
            ("probe_timeout", 10, "AP_RENDER_TIMEOUT=11"),
            ("probe_timeout", 0.5, "AP_RENDER_TIMEOUT=1"),
            ("probe_timeout", 59, "AP_RENDER_TIMEOUT=60 AP_PROBE_TIMEOUT=59"),
        ):
            config = self.config(**variables(settings))
            self.assertEqual(getattr(config, field), value, settings)


class ScalarTests(ConfigCase):
    """Numbers, words and addresses."""

    def test_numbers(self) -> None:
        """A number is accepted from its minimum to its maximum, in decimal digits (Limits)."""
        greater = {"ready_queue_threshold": "AP_QUEUE_SIZE=1000000"}
        greater["probe_timeout"] = "AP_RENDER_TIMEOUT=86400"
        store = f"AP_VARIANT_STORE=file://{self.folder()} AP_SERVE_MODE=proxy"
        greater["variant_store_max_bytes"] = store
        for low, high, names in (
            (0, 65_535, "port metrics_port"),
            (1, 604_800, "presign_ttl"),
            (1, 10**15, "max_src_bytes max_variant_bytes variant_store_max_bytes"),
            (384 * 2**20, 10**15, "max_child_memory"),
            (1, 4096, "max_concurrency"),
            (1, 65_536, "max_probe_concurrency"),
            (0, 86_400, "drain_timeout"),
            (0, 10**6, "queue_size ready_queue_threshold"),
            (1, 86_400, "render_timeout probe_timeout"),
        ):
            wanted = f"a whole number from {low} to {high} is required"
            refused = (str(low - 1), str(high + 1), "9" * 5000)
            refused += ("x", "1.5", "1e3", "2GB", " 1", "1\n", "+1", "1_0", "0x1", "\u0661", "-")
            for name in names.split():
                variable, limit = f"AP_{name.upper()}", variables(greater.get(name, ""))
                for number in (low, high - 1 if name == "probe_timeout" else high):
                    config = self.config(**limit, **{variable: str(number)})
                    self.assertEqual(getattr(config, name), number, name)
                self.assert_refused(variable, refused, wanted)

    def test_choices(self) -> None:
        """A setting with fixed values accepts these only (Deployment configuration)."""
        for variable, accepted in (
            ("AP_SERVE_MODE", "redirect or proxy"),
            ("AP_LOG_LEVEL", "debug, info, warning or error"),
        ):
            for word in accepted.replace(" or", ",").split(", "):
                config = self.config(**{variable: word})
                self.assertEqual(getattr(config, variable.removeprefix("AP_").lower()), word)
                refused = (word.upper(), word + " ", "x")
                self.assert_refused(variable, refused, f"{accepted} is required")
        for variable in ("AP_S3_ADDRESSING", "AP_VARIANT_S3_ADDRESSING"):
            self.assert_refused(variable, ("PATH", "host"), "virtual or path is required")

    def test_bind(self) -> None:
        """AP_METRICS_BIND is an address; AP_BIND may also be a Unix socket without a port (D59)."""
        for address in ("127.0.0.1", "0.0.0.0", "::1", "::", "fe80::1%eth0"):
            self.assertEqual(self.config(AP_METRICS_BIND=address).metrics_bind, address)
        refused = ("localhost", "[::1]", "127.0.0.01", "127.0.0.1:9", "fe80::1%a\n", " ::1")
        wanted = "an IPv4 or IPv6 address without brackets is required, not a host name"
        self.assert_refused("AP_METRICS_BIND", refused, wanted)
        for bind, path, is_local in (
            *(("0.0.0.0", None, False), ("::", None, False), ("192.0.2.1", None, False)),
            *(("127.0.0.1", None, True), ("127.9.9.9", None, True), ("::1", None, True)),
            *(("unix:/run/a b/unix:x", "/run/a b/unix:x", True), ("fe80::1%eth0", None, False)),
            (f"unix:/{'x' * 106}", f"/{'x' * 106}", True),
        ):
            config = self.config(AP_BIND=bind)
            found = config.bind, config.socket_path, config.is_local
            self.assertEqual((bind, path, is_local), found)
        addresses = ("localhost", "127.0.0.1:4000", "/run/x", "UNIX:/run/x", "*")
        self.assert_refused("AP_BIND", addresses, "not a host name; or unix:/path/of/a/socket")
        paths = ("unix:", "unix:run/x", "unix:///\0", f"unix:/{'x' * 107}", f"unix:/{'é' * 54}")
        self.assert_refused("AP_BIND", paths, "unix: and an absolute path of up to 107 bytes is")
        # The port is not used, so the metrics may have it.
        self.assertEqual(4000, self.config(AP_BIND="unix:/x", AP_METRICS_PORT="4000").metrics_port)

    def test_cache_tag_header(self) -> None:
        """AP_CACHE_TAG_HEADER is a header name without another meaning, in any case (D59).

        Tags are computed under AP_SALT, so insecure mode without a key has none (D31).
        """
        self.assertIsNone(self.config().cache_tag)
        for name in ("Cache-Tag", "SURROGATE-KEY", "X-Amz-Meta-Cache-Tag", "!x.y_z~", "a" * 64):
            config = self.config(AP_CACHE_TAG_HEADER=name)
            self.assertEqual((name.lower(), bytes.fromhex(SALT)), config.cache_tag)
        wanted = "a name such as Cache-Tag, Surrogate-Key or xkey is required"
        unusable = ("Cache Tag", "xkey:", "x\r\ny", "é", " xkey", "xkey\n", "a" * 65, '"x"', "a/b")
        taken = ("etag", "Content-Type", "content-anything", "TRANSFER-ENCODING", "Connection")
        taken += ("Vary", "expires", "set-cookie", "X-Accel-Redirect", "Access-Control-Anything")
        for names, fault in ((unusable, "is not the name of a header"), (taken, "of its own in")):
            self.assert_refused("AP_CACHE_TAG_HEADER", names, fault)
            self.assert_refused("AP_CACHE_TAG_HEADER", names, wanted)
        insecure = {"AP_ALLOW_INSECURE": "1", "AP_CACHE_TAG_HEADER": "xkey"}
        (problem,) = self.problems(insecure)
        self.assertIn("AP_CACHE_TAG_HEADER: set without AP_SALT, under which tags are", problem)
        self.assertEqual("xkey", self.config(**insecure).cache_tag_header)
        in_code = {"allow_insecure": True, "cache_tag_header": "xkey"}
        self.assertRaises(ConfigError, Config, **in_code)

    def test_conflicts(self) -> None:
        """Settings in conflict are refused with a message that names both (Limits)."""
        for variable, other, rows in (
            ("AP_METRICS_PORT", "AP_PORT", (("", "9568"), ("4000", ""), ("8080", "8080"))),
            ("AP_READY_QUEUE_THRESHOLD", "AP_QUEUE_SIZE", (("33", ""), ("5", "4"), ("1", "0"))),
            ("AP_PROBE_TIMEOUT", "AP_RENDER_TIMEOUT", (("300", ""), ("301", ""), ("1", "1"))),
        ):
            for value, other_value in rows:
                problem = self.problem(variable, **{variable: value, other: other_value})
                self.assertIn(f"{other},", problem)
        config = self.config(AP_PORT="0", AP_METRICS_PORT="0")
        self.assertEqual((config.port, config.metrics_port), (0, 0))


class SigningTests(ConfigCase):
    """AP_KEY, AP_SALT and AP_ALLOW_INSECURE."""

    def test_key_and_salt(self) -> None:
        """Key and salt are hexadecimal; refusals name the fault (Authentication, 1 and 4; D32)."""
        config = load({"AP_KEY": "aBcD" * 16, "AP_SALT": "0F"})[0]
        self.assertEqual((config.key, config.salt), (bytes.fromhex("abcd" * 16), b"\x0f"))
        for variable, text, fault in (
            ("AP_KEY", "ab" * 31, "31 bytes"),
            ("AP_KEY", "0x" + "ab" * 32, "character 2 of 66 is not a hexadecimal digit"),
            ("AP_KEY", "\u0661" * 64, "character 1 of 64 is not a hexadecimal digit"),
            ("AP_SALT", "5", "an odd number of hexadecimal digits, 1, but each byte has two"),
        ):
            wanted = {"AP_KEY": KEY_REQUIRED, "AP_SALT": SALT_REQUIRED}[variable]
            problem = self.problem(variable, **{variable: text})
            self.assertEqual(problem, f"{variable}: {fault}; {wanted}")

    def test_missing(self) -> None:
        """Without key and salt the service does not start (Authentication, 4; D32).

        They are required together, in insecure mode too (D31).
        """
        wanted = (f"AP_KEY: not set; {KEY_REQUIRED}", f"AP_SALT: not set; {SALT_REQUIRED}")
        for environ in ({}, {"AP_ALLOW_INSECURE": "no"}):
            self.assertEqual(self.problems(environ), wanted)
        for insecure in ("", "1", "maybe"):
            for present, missing in (("AP_KEY", "AP_SALT"), ("AP_SALT", "AP_KEY")):
                environ = {present: SIGNED[present], "AP_ALLOW_INSECURE": insecure}
                self.assertIn(
                    f"{missing}: missing beside {present}; set AP_KEY and AP_SALT together",
                    self.problems(environ),
                )

    def test_previous_pairs(self) -> None:
        """Previous keys and salts are lists of equal length, of which each is checked (D55)."""
        one, other = "b2" * 32, "C3" * 40
        config = self.config(AP_PREVIOUS_KEY=f"{one},{other}", AP_PREVIOUS_SALT="01,0203")
        previous = [(one, "01"), (other, "0203")]
        expected = [tuple(map(bytes.fromhex, pair)) for pair in [(KEY, SALT), *previous]]
        self.assertEqual(tuple(expected), config.signing_pairs)
        self.assertNotIn(one, str(config))
        for keys, salts, variable, fault in (
            ("b2" * 31, "01", "KEY", "entry 1 of 1: 31 bytes; at least 32 bytes"),
            (f"{one},", "01,02", "KEY", "entry 2 of 2: empty; at least 32 bytes"),
            (f"{one},x", "01", "KEY", "entry 2 of 2: character 1 of 1 is not a hexadecimal digit"),
            (f"{one}, {other}", "01,02", "KEY", "entry 2 of 2: white space around the value"),
            (one, "1", "SALT", "entry 1 of 1: an odd number of hexadecimal digits, 1"),
            (one, ",01", "SALT", "entry 1 of 2: empty; at least 1 byte"),
            (f"{one},{other}", "01", "SALT", "AP_PREVIOUS_KEY has 2 and AP_PREVIOUS_SALT 1; each"),
            (one, "", "SALT", "AP_PREVIOUS_KEY has 1 and AP_PREVIOUS_SALT 0; each previous key"),
            ("", "01", "SALT", "AP_PREVIOUS_KEY has 0 and AP_PREVIOUS_SALT 1; each previous key"),
        ):
            name = f"AP_PREVIOUS_{variable}"
            problem = self.problem(name, AP_PREVIOUS_KEY=keys, AP_PREVIOUS_SALT=salts)
            self.assertTrue(problem.startswith(f"{name}: {fault}"), problem)
        (problem,) = self.problems(
            {"AP_ALLOW_INSECURE": "1", "AP_PREVIOUS_KEY": one, "AP_PREVIOUS_SALT": "01"}
        )
        expected_problem = "AP_PREVIOUS_KEY: set without AP_KEY; set AP_KEY and AP_SALT to the"
        self.assertTrue(problem.startswith(expected_problem), problem)
        # A fault of the current key is reported too, and alone.
        previous_variables = {"AP_PREVIOUS_KEY": one, "AP_PREVIOUS_SALT": "0"}
        problems = self.problems({"AP_KEY": "b2", "AP_SALT": SALT, **previous_variables})
        self.assertEqual(["AP_KEY", "AP_PREVIOUS_SALT"], [each.split(":")[0] for each in problems])

    def test_in_code(self) -> None:
        """A Config built in code has the same checks and messages (D31, D32)."""
        wrong_type = "bytes are required, such as bytes.fromhex returns for hexadecimal text"
        pair = {"key": bytes(32), "salt": b"s"}
        for arguments, *problems in (
            ({}, f"KEY: not set; {KEY_REQUIRED}", f"SALT: not set; {SALT_REQUIRED}"),
            (pair | {"key": bytes(31)}, f"KEY: 31 bytes; {KEY_REQUIRED}"),
            (pair | {"key": b"", "allow_insecure": True}, f"KEY: 0 bytes; {KEY_REQUIRED}"),
            ({"key": bytes(32)}, "SALT: missing beside AP_KEY; set AP_KEY and AP_SALT together"),
            (pair | {"key": KEY}, f"KEY: str; {wrong_type}"),
            (pair | {"allow_insecure": "no"}, "ALLOW_INSECURE: str; True or False is required"),
            (
                pair | {"previous_key": bytes(32), "previous_salt": (b"s",)},
                "PREVIOUS_KEY: not a tuple of bytes; a tuple with bytes for each is required",
            ),
            (
                pair | {"previous_key": (bytes(31),), "previous_salt": (b"s",)},
                f"PREVIOUS_KEY: entry 1 of 1: 31 bytes; {KEY_REQUIRED}",
            ),
        ):
            error = self.assertRaises(ConfigError, Config, **arguments)
            expected = [f"AP_{problem}" for problem in problems]
            self.assertEqual(expected, [*map(str, error.problems)], arguments)

    def test_insecure_spellings(self) -> None:
        """A switch accepts eight words in any letter case and no others (D31)."""
        for on, words in ((True, "1 true yes on TRUE Yes oN"), (False, "0 false no off FALSE oFF")):
            for text in words.split():
                self.assertIs(self.config(AP_ALLOW_INSECURE=text).allow_insecure, on, text)
                self.assertIs(self.config(AP_REQUIRE_CELL=text).require_cell, on, text)
        self.assert_refused(
            "AP_ALLOW_INSECURE",
            ("2", "y", "enabled", " on", "ture"),
            "1, true, yes, on, 0, false, no or off is required",
        )
        # A misspelled word is the only problem; no missing key is reported.
        (problem,) = self.problems({"AP_ALLOW_INSECURE": "ture"})
        self.assertTrue(problem.startswith("AP_ALLOW_INSECURE: 'ture'"), problem)

    def test_insecure(self) -> None:
        """Insecure mode needs no key, and always causes a warning (D31)."""
        (warning,) = self.warnings(AP_ALLOW_INSECURE="1")
        self.assertTrue(warning.startswith("AP_ALLOW_INSECURE: on"), warning)
        self.assertIn("anyone who reaches the service can write URLs; turn it off, or let", warning)
        (local,) = self.warnings(AP_ALLOW_INSECURE="1", AP_BIND="127.0.0.1")
        self.assertTrue(local.startswith("AP_ALLOW_INSECURE: on"), local)
        self.assertNotIn("anyone", local)
        config, warnings = load({"AP_ALLOW_INSECURE": "on"})
        self.assertEqual((config.key, config.salt, config.allow_insecure), (None, None, True))
        self.assertEqual(str(warnings[0]), warning)
        self.assertRegex(str(warnings[1]), "^AP_KEY: .*only the word insecure")


class PathTests(ConfigCase):
    """AP_LOCAL_ROOT, AP_VARIANT_STORE and the CA bundles."""

    def test_file_store(self) -> None:
        """The path of a file store is taken literally (Deployment configuration)."""
        parent = self.folder()
        for name in ("plain", "a%20b", "a b?c#d", "\u00fc"):
            path = os.path.join(parent, name)
            os.mkdir(path)
            config = self.config(AP_VARIANT_STORE=f"file://{path}", AP_SERVE_MODE="proxy")
            self.assertEqual(config.variant_store, FileStore(path))

    def test_bad_file_store(self) -> None:
        """A file store must be an absolute file:/// path of a writable directory."""
        closed = self.folder()
        self.deny_access(closed, os.W_OK)
        unusable = (f"file://{closed}", f"file://{self.file()}", "file:///no/such", "file:///a\0b")
        for values, wanted in (
            ("file:// file://host/srv file://srv file://./x".split(), "a host, or no path, after"),
            ("/srv srv FILE:///srv S3://bucket file:/srv".split(), "an unknown scheme; file:///<"),
            (unusable, "an existing directory, writable by this process, is required"),
        ):
            self.assert_refused("AP_VARIANT_STORE", values, wanted)

    def test_bucket_store(self) -> None:
        """An s3:// store is a bucket; refusals show no credentials (Deployment configuration)."""
        for name in ("b", "my-bucket.v1_x", "B" * 63):
            config = self.config(AP_VARIANT_STORE=f"s3://{name}", **SHARED)
            self.assertEqual(config.variant_store, BucketStore(name))
        for what, names in (
            ("a key prefix", ("b/", "b/prefix")),
            ("a port", ("b:9000",)),
            ("credentials", ("id:hush@b", "id:hu/sh@b")),
            ("credentials, a port and a key prefix", ("id:hush@b:9000/prefix",)),
            ("no bucket name", ("", "-b", "b" * 64, "b?x", "b\u00fc", "b%20", "b\n")),
        ):
            for name in names:
                store = {"AP_VARIANT_STORE": f"s3://{name}"}
                problem = self.problem("AP_VARIANT_STORE", **store, **SHARED)
                self.assertTrue(problem.startswith(f"AP_VARIANT_STORE: {what} after s3"), problem)
                self.assertNotIn("hu", problem)

    @DETERMINISTIC
    @given(text=st.text("Aa0._-/%\n", max_size=6) | st.text(max_size=6))
    def test_one_bucket_grammar(self, text: str) -> None:
        """AP_VARIANT_STORE accepts exactly the bucket names that sources accept."""
        try:
            source = read_source(b"plain", b"s3://%s/key" % text.encode("utf-8", "surrogatepass"))
        except NotFound:
            source = None
        legal = isinstance(source, S3Source) and source.bucket == text
        try:
            accepted = bucket(text) == text
        except ValueError:
            accepted = False
        self.assertEqual(accepted, legal)

    def test_bound_without_folder(self) -> None:
        """A bound is refused without a file store; a bucket has rules of its own (D59)."""
        bound = {"AP_VARIANT_STORE_MAX_BYTES": "1"}
        bucket = {"AP_VARIANT_STORE": "s3://variants", **SHARED}
        for store, words in (({}, "AP_VARIANT_STORE"), (bucket, "lifecycle rules")):
            self.assertIn(words, self.problem(*bound, **bound, **store))

    def test_redirect_to_files(self) -> None:
        """Redirect mode is refused with a file store (Deployment configuration)."""
        store = f"file://{self.folder()}"
        for variables in ({}, {"AP_SERVE_MODE": "redirect"}):
            problem = self.problem("AP_SERVE_MODE", AP_VARIANT_STORE=store, **variables)
            self.assertRegex(problem, "^AP_SERVE_MODE: redirect.*AP_VARIANT_STORE")
            self.assertEqual("(the default)" in problem, not variables)

    def test_files(self) -> None:
        """AP_LOCAL_ROOT is a readable directory, a bundle a file (Deployment configuration)."""
        folder, file = self.folder(), self.file()
        config = self.config(AP_LOCAL_ROOT=folder, AP_S3_CA_BUNDLE=file)
        self.assertEqual((config.local_root, config.source_s3.ca_bundle), (folder, file))
        bad = (self.mktemp(), "a\0b", "\udcff", "\ud800", "x" * 9000, "\n", "/dev/null")
        for kind, other, closed, names in (
            ("directory", file, self.folder(), "AP_LOCAL_ROOT"),
            ("regular file", folder, self.file(), "AP_S3_CA_BUNDLE AP_VARIANT_S3_CA_BUNDLE"),
        ):
            self.deny_access(closed, os.R_OK)
            wanted = f"an existing {kind}, readable by this process, is required"
            for name in names.split():
                self.assert_refused(name, (*bad, closed, other), wanted)


class ObjectStoreTests(ConfigCase):
    """Endpoints, addressing and credentials of object stores."""

    def test_endpoint_and_addressing(self) -> None:
        """The variant store's endpoint defaults to the shared one (Deployment configuration)."""
        shared, own = "AP_S3_ENDPOINT=http://shared", "AP_VARIANT_S3_ENDPOINT=http://own"
        for source, variant, settings in (
            ("None virtual", "None virtual", ""),
            ("None path", "None path", "AP_S3_ADDRESSING=path"),
            ("shared path", "shared path", shared),
            ("shared virtual", "shared virtual", f"{shared} AP_S3_ADDRESSING=virtual"),
            ("shared path", "shared virtual", f"{shared} AP_VARIANT_S3_ADDRESSING=virtual"),
            ("None virtual", "own path", own),
            ("None virtual", "own path", f"{own} AP_S3_ADDRESSING=virtual"),
            ("None virtual", "own virtual", f"{own} AP_VARIANT_S3_ADDRESSING=virtual"),
        ):
            config = self.config(**variables(settings))
            for store, wanted in ((config.source_s3, source), (config.variant_s3, variant)):
                endpoint = str(store.endpoint).removeprefix("http://")
                self.assertEqual(f"{endpoint} {store.addressing}", wanted, settings)

    def test_inherited_bundle(self) -> None:
        """The variant store uses AP_S3_CA_BUNDLE unless AP_VARIANT_S3_CA_BUNDLE is set."""
        one, two = self.file(), self.file()
        self.assertEqual(self.config(AP_S3_CA_BUNDLE=one).variant_s3.ca_bundle, one)
        own = {"AP_VARIANT_S3_CA_BUNDLE": two, "AP_VARIANT_S3_ENDPOINT": "https://a.example"}
        config = self.config(AP_S3_CA_BUNDLE=one, **own)
        self.assertEqual((config.source_s3.ca_bundle, config.variant_s3.ca_bundle), (one, two))

    def test_endpoint_spelling(self) -> None:
        """An endpoint is an origin, which is normalized; a refusal names one to use."""
        for text, endpoint in (
            ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("HTTPS://Minio.Example:443", "https://minio.example"),
            ("https://[::1]:9000", "https://[::1]:9000"),
            ("http://minio_1", "http://minio_1"),
        ):
            self.assertEqual(self.config(AP_S3_ENDPOINT=text).source_s3.endpoint, endpoint)
        for rest, what in (
            ("s3.example/", "a trailing slash"),
            ("s3.example?q=1", "a query"),
            ("id:hush@s3.example/p?q#f", "credentials, a path, a query and a fragment"),
        ):
            for name in ("AP_S3_ENDPOINT", "AP_VARIANT_S3_ENDPOINT"):
                problem = self.problem(name, **{name: f"https://{rest}"})
                self.assertEqual(problem, f"{name}: {what}; only https://s3.example is accepted")
        self.assert_refused(
            "AP_S3_ENDPOINT",
            ("s3.example", "ftp://s3.example", "https://a:0", "*", "https://id:1/hush@s3.example"),
            "an origin such as https://s3.example or http://127.0.0.1:9000 is required",
        )

    def test_identities(self) -> None:
        """Without its own credentials the variant store uses AWS_*, else none of them."""
        endpoint = (None, "virtual", None)
        shared = S3Config(*endpoint, "shared-id", "shared-secret", "token", "eu-west-1")
        own = S3Config(*endpoint, "own-id", "own-secret", None, "us-east-2")
        own_token = {"AP_VARIANT_S3_SESSION_TOKEN": "own-token"}
        aws = {**SHARED, "AWS_SESSION_TOKEN": "token"}
        for environ, source, variant in (
            (aws, shared, shared),
            (aws | OWN, shared, own),
            (aws | OWN | own_token, shared, replace(own, session_token="own-token")),
            (OWN, S3Config(), own),
        ):
            config = self.config(**environ)
            self.assertEqual((config.source_s3, config.variant_s3), (source, variant))
            self.assertEqual(source, config.sources.s3)
            stored = replace(config, variant_store=BucketStore("bucket")).store
            self.assertEqual(variant, stored and stored.s3)
            self.assertEqual(config.source_s3.configured, source is shared)
            self.assertTrue(config.variant_s3.configured)

    def test_region_spellings(self) -> None:
        """AWS_REGION takes precedence over AWS_DEFAULT_REGION, which is then not checked."""
        identity = {name: text for name, text in SHARED.items() if name != "AWS_REGION"}
        for regions, region in (
            ({"AWS_DEFAULT_REGION": "auto"}, "auto"),
            ({"AWS_REGION": "one", "AWS_DEFAULT_REGION": "not a region"}, "one"),
        ):
            self.assertEqual(self.config(**identity, **regions).source_s3.region, region)
        self.problem("AWS_DEFAULT_REGION", **identity, AWS_DEFAULT_REGION="not a region")

    def test_incomplete_identity(self) -> None:
        """Incomplete credentials are refused, and each missing variable is named."""
        for group in (SHARED, OWN):
            for bits in range(1, 7):
                present = {n: v for i, (n, v) in enumerate(group.items()) if bits >> i & 1}
                problems = self.problems(SIGNED | present | {"AP_VARIANT_STORE": "s3://variants"})
                named = {problem.partition(": missing beside ")[0] for problem in problems}
                self.assertEqual(named, group.keys() - present.keys())
                for problem in problems:
                    self.assertTrue(all(name in problem for name in group), problem)
        problems = self.problems(SIGNED | {"AWS_DEFAULT_REGION": "auto"})
        named = [problem.partition(":")[0] for problem in problems]
        self.assertEqual(named, ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])

    def test_lone_token(self) -> None:
        """A session token without the credentials that it belongs to is refused."""
        for variables, token in (
            ({}, "AWS_SESSION_TOKEN"),
            (OWN, "AWS_SESSION_TOKEN"),
            ({}, "AP_VARIANT_S3_SESSION_TOKEN"),
            (SHARED, "AP_VARIANT_S3_SESSION_TOKEN"),
        ):
            self.assertIn(": set on its own", self.problem(token, **variables, **{token: "token"}))

    def test_bad_credentials(self) -> None:
        """Credentials that break a header, or are missing, are refused and not shown."""
        for name in (*SHARED, *OWN, "AWS_SESSION_TOKEN", "AP_VARIANT_S3_SESSION_TOKEN"):
            for text in ("hush hush", "hush\n", "hush\u00fc", "hush\r\nX: y", " "):
                problem = self.problem(name, **SHARED | OWN | {name: text})
                self.assertNotIn("hush", problem)
        problem = self.problem("AP_VARIANT_STORE", AP_VARIANT_STORE="s3://variants")
        for name in (*SHARED, *OWN):
            self.assertIn(name, problem)


class OriginTests(ConfigCase):
    """AP_ALLOW_ORIGIN (CORS, 4) and AP_SOURCE_ALLOWLIST."""

    def test_accepted(self) -> None:
        """``*`` and http or https origins, as browsers send them, are accepted unchanged."""
        for text in (
            *("*", "https://app.example", "http://app.example", "https://app.example:8443"),
            *("http://app.example:443", "https://app.example:80", "http://localhost:3000"),
            *("http://127.0.0.1:8000", "http://[::1]:8000", "https://[2001:db8::1]"),
            *("https://[::ffff:102:304]", "https://xn--bcher-kva.example", "http://a_b.example"),
        ):
            self.assertEqual(self.config(AP_ALLOW_ORIGIN=text).allow_origin, text)

    def test_not_canonical(self) -> None:
        """A non-canonical origin is refused with its faults and the canonical spelling."""
        https, unusual = "https://a.example", "an address in an unusual spelling"
        for canonical, faults, *texts in (
            (https, "a trailing slash", f"{https}/"),
            (https, "a path", f"{https}/path", f"{https}//"),
            (https, "a query", f"{https}?q", f"{https}?"),
            (https, "credentials", "https://u:hush@a.example", "https://@a.example"),
            (f"{https}:8443", "a trailing dot", f"{https}.:8443"),
            (https, "an explicit default port", f"{https}:443", f"{https}:0443"),
            ("http://a.example", "an empty port", "http://a.example:"),
            ("http://a.example:8080", "a port with leading zeros", "http://a.example:08080"),
            ("http://127.0.0.1", unusual, "http://127.1", "http://0x7f000001"),
            ("http://[::1]", unusual, "http://[0:0::1]"),
            ("http://[2001:db8::1]", "an upper-case host", "http://[2001:DB8::1]"),
            (
                https,
                "a path, a query, a fragment and an upper-case scheme",
                "HTTPS://a.example/p?q#f",
            ),
        ):
            for text in texts:
                self.assertEqual(
                    self.problem("AP_ALLOW_ORIGIN", AP_ALLOW_ORIGIN=text),
                    f"AP_ALLOW_ORIGIN: {faults}; the canonical spelling is {canonical}",
                )

    def test_no_origin(self) -> None:
        """A value other than ``*`` or one http or https origin is refused with an example."""
        self.assert_refused(
            "AP_ALLOW_ORIGIN",
            (
                *("null", "app.example", "ftp://a.example", "file:///x", "**", "https://", " *"),
                *("https://a.example,https://b.example", "https://a.example https://b.example"),
                *("https://*.example", "https://a..example", "https://" + "a" * 64, "https://a\n"),
                *("https://1.2.3.4.5", "https://a.0x", "https://.", "https://[fe80::1%eth0]"),
                *("https://a:65536", "https://a:0", "https://u:1/hush@a.example", "https://::1"),
                *("//a.example", "https:///x", "https://a b", "https://[zz]", "https://%61"),
            ),
            "* or exactly one origin such as https://app.example is required",
        )
        # A host outside ASCII has a spelling that is accepted.
        self.assert_refused("AP_ALLOW_ORIGIN", ("https://b\u00fccher.example",), "punycode")

    @DETERMINISTIC
    @given(
        scheme=st.sampled_from(("http", "HTTPS")),
        host=st.text("aB1.:[]-_0x", max_size=12) | st.ip_addresses().map(str),
        port=st.just("") | st.integers(0, 70_000).map(lambda port: f":{port}"),
        rest=st.text("/?#a@.", max_size=4),
    )
    def test_canonical_is_accepted(self, scheme: str, host: str, port: str, rest: str) -> None:
        """The canonical spelling that a refusal recommends is itself accepted."""
        bracketed = f"[{host}]" if ":" in host else host
        try:
            canonical, _, _ = parse_origin(f"{scheme}://{bracketed}{port}{rest}", "")
        except ValueError:
            return
        self.assertEqual(self.config(AP_ALLOW_ORIGIN=canonical).allow_origin, canonical)

    def test_entries(self) -> None:
        """Entries are separated by commas, and blanks around them are ignored."""
        for text, entries in (
            ("*", ("*",)),
            ("bucket", ("bucket",)),
            (" a , b*,\t*.c.example ,::1", ("a", "b*", "*.c.example", "::1")),
        ):
            config, warnings = load(SIGNED | {"AP_SOURCE_ALLOWLIST": text})
            self.assertEqual((config.source_allowlist, warnings), (entries, ()))

    def test_empty(self) -> None:
        """An empty entry, or a list that is set but empty, is refused (D49)."""
        for words, texts in (
            ("entry 2 of 3 is empty", ("a,,b",)),
            ("entry 2 of 2 is empty", ("a,",)),
            ("entry 1 of 2 is empty", (",a", " ,")),
            ("set but empty, which would allow every", ("", " ")),
        ):
            self.assert_refused("AP_SOURCE_ALLOWLIST", texts, words)

    def test_entry_that_matches_nothing(self) -> None:
        """An entry that can match nothing is accepted with a warning that quotes it."""
        for entry in (
            *("a*b", "*a", "**", "a**", "*.", "*.a*", "*.*", "a.*.b", "*a*", ".*.a"),
            *("https://a.example", "a.example/path", "[::1]", "a b"),
        ):
            config, warnings = load(SIGNED | {"AP_SOURCE_ALLOWLIST": f"ok,{entry}"})
            self.assertEqual(config.source_allowlist, ("ok", entry))
            (warning,) = map(str, warnings)
            self.assertTrue(warning.startswith(f"AP_SOURCE_ALLOWLIST: {entry!r} matches no"))


class ReportTests(ConfigCase):
    """Messages for the operator."""

    def test_unknown_variable(self) -> None:
        """An unknown AP_* variable causes a warning with the nearest known name (D33)."""
        for name, nearest in (("AP_KYE", "AP_KEY"), ("AP_MAX_RENDER_TIMEOUT", "AP_RENDER_TIMEOUT")):
            (warning,) = self.warnings(**{name: "hush"})
            self.assertTrue(warning.startswith(f"{name}: "), warning)
            self.assertTrue(warning.endswith(f"the nearest known name is {nearest}"), warning)
            self.assertNotIn("hush", warning)
        # The warning is one printable line for any name.
        for name in ("AP_", "AP_QQ\nqq", "AP_\udcff"):
            (warning,) = self.warnings(**{name: "x"})
            self.assertTrue(warning.isprintable() and "known name is AP_" in warning, warning)
        # Variables of other programs cause no warnings.
        self.assertEqual((), self.warnings(AWS_PROFILE="x", PATH="/bin", ap_key="x", MAP_KEY="x"))
        error = self.assertRaises(ConfigError, load, {"AP_KYE": KEY, "AP_SALT": SALT})
        self.assertEqual(len(error.problems), 1)
        self.assertIn("the nearest known name is AP_KEY", str(error.warnings[0]))

    def test_all_at_once(self) -> None:
        """All problems of an environment are reported together, one line each."""
        broken = dict.fromkeys((name for name in KNOWN if name != "AWS_DEFAULT_REGION"), "\u00fc ,")
        problems = self.problems(broken)
        self.assertEqual({problem.partition(":")[0] for problem in problems}, broken.keys())
        self.assertEqual(len(problems), len(broken))
        # Conflicts are reported beside values that are refused by themselves.
        error = self.assertRaises(ConfigError, load, variables("AP_KEY=abab AP_PORT=9568"))
        names = [problem.variable for problem in error.problems]
        self.assertEqual(["AP_KEY", "AP_SALT", "AP_METRICS_PORT"], names)
        self.assertEqual(str(error).splitlines(), [*map(str, error.problems)])

    def test_no_follow_up_problem(self) -> None:
        """Only an invalid value is reported, even if its default conflicts with other settings."""
        for name, variables in (
            ("AP_QUEUE_SIZE", {"AP_READY_QUEUE_THRESHOLD": "40"}),
            ("AP_RENDER_TIMEOUT", {"AP_PROBE_TIMEOUT": "400"}),
            ("AP_PORT", {"AP_METRICS_PORT": "4000"}),
            ("AP_SERVE_MODE", {"AP_VARIANT_STORE": f"file://{self.folder()}"}),
        ):
            self.assertIn(": 'x';", self.problem(name, **{name: "x"}, **variables))

    def test_secrets_in_values(self) -> None:
        """The repr of a configuration contains no secret."""
        secrets = SHARED | OWN | {"AWS_SESSION_TOKEN": "s-t", "AP_VARIANT_S3_SESSION_TOKEN": "o-t"}
        config = self.config(**secrets)
        shown = repr(config) + repr(config.source_s3) + repr(config.variant_s3)
        for name, secret in (secrets | {"k": repr(config.key), "s": repr(config.salt)}).items():
            self.assertEqual(secret in shown, name.endswith("REGION"), name)

    @DETERMINISTIC
    @given(
        environ=st.dictionaries(
            st.sampled_from(
                [name for name in KNOWN if name.startswith("AWS_") or name.endswith("_ID")]
                + "AP_KEY AP_SALT AP_S3_ENDPOINT AP_ALLOW_ORIGIN AP_VARIANT_STORE".split()
                + "AP_VARIANT_S3_SECRET_ACCESS_KEY AP_VARIANT_S3_SESSION_TOKEN AP_OTHER".split()
            ),
            st.sampled_from(("%s", "%s ", "\n%s", "%s\u00fc", "https://u:%s@a.example", "ab%s")),
        )
    )
    def test_secrets_in_reports(self, environ: dict[str, str]) -> None:
        """No problem and no warning contains a secret, whatever is wrong with it."""
        try:
            reports = load({name: text % "hushhush" for name, text in environ.items()})[1]
        except ConfigError as error:
            self.assertIsNone(error.__cause__)
            reports = error.problems + error.warnings
        self.assertNotIn("hush", "".join(map(str, reports)))

    @DETERMINISTIC
    @given(
        environ=st.dictionaries(
            st.sampled_from(KNOWN) | st.text(max_size=9).map("AP_".__add__),
            st.text(max_size=20)
            | st.text("0123456789abcdef", max_size=70)
            | st.lists(
                st.sampled_from(
                    "http https file s3 :// / : @ ? # * , . [ ] ::1 a 0 1 99 % on proxy".split()
                )
                | st.characters(),
                max_size=9,
            ).map("".join),
            max_size=30,
        )
    )
    def test_any_environment(self, environ: dict[str, str]) -> None:
        """Any environment results in a configuration or a list of problems, never a traceback."""
        try:
            config, _ = load(environ)
        except ConfigError:
            self.problems(environ)
        else:
            self.assertIsInstance(config, Config)
