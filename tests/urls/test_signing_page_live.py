"""Every program of ``docs/signing.md`` and of the clients' READMEs works as it stands there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.signature import verify
from tests.deploy.balancer import installed
from tests.support.http import KEY, SALT
from tests.support.runs import output_of
from tests.support.service import PROJECT
from tests.test_docs import PAGES, code

SECRETS = {"AP_KEY": KEY.hex(), "AP_SALT": SALT.hex()}
CLIENTS = PROJECT / "examples/clients"

#: URL in what a program prints. Groups: its signature and what it signs.
URL = re.compile(r'https://audio\.example(?:/media)?/([\w-]{43})(/[^\s"]*?)(?=/Episode|[\s"])')

#: Loads the classes of PHP where the package's metadata says that they are, as Composer does.
AUTOLOAD = f"""<?php
spl_autoload_register(function ($class) {{
    $package = json_decode(file_get_contents('{CLIENTS}/php/composer.json'), true);
    foreach ($package['autoload']['psr-4'] as $prefix => $folder) {{
        $file = str_replace('\\\\', '/', substr($class, strlen($prefix)));
        require "{CLIENTS}/php/$folder$file.php";
    }}
}});
"""

#: A double of Express that answers two requests, as the real one does.
EXPRESS = """
const routes = [];
const respond = (path) => {
  const { pattern, handler } = routes.find((route) => path.startsWith(route.pattern));
  const response = { send: console.log, sendStatus: console.log };
  handler({ params: { number: path.slice(pattern.length) } }, response);
};
export default () => ({
  get: (path, handler) => routes.push({ pattern: path.replace(":number", ""), handler }),
  listen: () => ["/pieces/1", "/pieces/2"].forEach(respond),
});
"""

#: What the recipe uses of Rails, and a template that uses the recipe.
RAILS = """
class Integer
  def day = self * 86_400
end
class String
  def html_safe = self
end
%s
include AudioHelper
puts audio("nocturne.wav", t: [30, 15], fade: [0.5, 2])
"""

#: What the signatures of the recipes sign.
PREVIEWS = [
    f"/f:{form}/fade:0.5:2/t:30:15/exp:/plain/s3://masters/nocturne.wav"
    for form in ("opus", "m4a", "mp3")
]


def signed_parts(text: str) -> list[str]:
    """Return what the signatures in a text sign, after a check of each."""
    found = URL.findall(text)
    for signature, path in found:
        assert verify(KEY, SALT, path.encode(), signature.encode()), path
    return [re.sub(r"exp:\d+", "exp:", path) for _, path in found]


class PageTests(SynchronousTestCase):
    """Programs of the pages, in the place where their library is installed"""

    #: The command of each language, and the name of a program's file.
    LANGUAGES: ClassVar = {
        "python": (sys.executable, "program.py"),
        "js": ("node", "program.mjs"),
        "php": ("php", "program.php"),
        "ruby": ("ruby", "program.rb"),
    }

    def setUp(self) -> None:
        """Install the libraries in an empty folder."""
        self.home = Path(self.mktemp()).resolve()
        for folder in ("node_modules/express", "vendor"):
            (self.home / folder).mkdir(parents=True)
        package = json.loads((CLIENTS / "javascript/package.json").read_text())
        (self.home / "node_modules" / package["name"]).symlink_to(CLIENTS / "javascript")
        main = {"type": "module", "exports": "./index.js"}
        (self.home / "node_modules/express/package.json").write_text(json.dumps(main))
        (self.home / "node_modules/express/index.js").write_text(EXPRESS)
        (self.home / "vendor/autoload.php").write_text(AUTOLOAD)

    def output(self, language: str, program: str) -> str:
        """Run a program to its end and return what it prints."""
        command, name = self.LANGUAGES[language]
        (self.home / name).write_text(program)
        environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": str(PROJECT)}
        environ |= {"RUBYLIB": str(CLIENTS / "ruby/lib"), **SECRETS}
        path = installed(command, "AUDIOPROXY_LANGUAGES")
        return output_of(path, name, environment=environ, cwd=self.home)

    def test_languages(self) -> None:
        """The first program of each language prints the same URLs: variant, element and info."""
        printed = {
            name: self.output(name, code(PAGES["signing"], name)[0]) for name in self.LANGUAGES
        }
        expected = signed_parts(printed["python"])
        self.assertEqual(5, len(expected))
        for name, text in printed.items():
            self.assertEqual(expected, signed_parts(text), name)
            self.assertEqual(3, text.count("<source "), name)

    def test_readmes(self) -> None:
        """The programs in the READMEs of the clients print the same lines."""
        printed = set()
        for folder, name in (("javascript", "js"), ("php", "php"), ("ruby", "ruby")):
            (program,) = code((CLIENTS / folder / "README.md").read_text(), name)
            printed.add(self.output(name, program))
        (text,) = printed
        self.assertEqual(4, len(signed_parts(text)))
        self.assertTrue(text.endswith("\nf:opus/t:30:15\n"), text)

    def test_express(self) -> None:
        """The recipe for Express answers with an element, and with 404 for an unknown piece."""
        text = self.output("js", code(PAGES["signing"], "js")[1])
        self.assertEqual(PREVIEWS, signed_parts(text))
        self.assertTrue(text.endswith("</audio>\n404\n"), text)

    def test_rails(self) -> None:
        """The recipe for Rails returns an element."""
        text = self.output("ruby", RAILS % code(PAGES["signing"], "ruby")[1])
        self.assertEqual(PREVIEWS, signed_parts(text))


class FrameworkTests(SynchronousTestCase):
    """Recipes for frameworks in Python, with the frameworks themselves"""

    def recipe(self, framework: str) -> dict[str, Any]:
        """Run the recipe for a framework, and return its names."""
        (program,) = [
            text for text in code(PAGES["signing"], "python") if f"from {framework}" in text
        ]
        module = ModuleType(f"{framework}_recipe")
        sys.modules[module.__name__] = module
        self.addCleanup(sys.modules.pop, module.__name__)
        with mock.patch.dict(os.environ, SECRETS):
            exec(program, module.__dict__)
        return module.__dict__

    def test_django(self) -> None:
        """The template tag for Django is an element that is not escaped."""
        from django.conf import settings
        from django.template import Context, Engine

        self.recipe("django")
        if not settings.configured:
            settings.configure()
        engine = Engine(libraries={"audio": "django_recipe"})
        text = '{% load audio %}{% audio key t="30:15" fade="0.5:2" %}'
        rendered = engine.from_string(text).render(Context({"key": "nocturne.wav"}))
        self.assertEqual(PREVIEWS, signed_parts(rendered))

    def test_flask(self) -> None:
        """The page of Flask has an element that is not escaped, and unknown pieces are a 404."""
        client = self.recipe("flask")["app"].test_client()
        self.assertEqual(PREVIEWS, signed_parts(client.get("/pieces/1").text))
        self.assertEqual(404, client.get("/pieces/2").status_code)

    def test_fastapi(self) -> None:
        """The route of FastAPI redirects to a URL, and unknown pieces are a 404."""
        app = self.recipe("fastapi")["app"]
        status, location = asyncio.run(request(app, "/pieces/1/preview.mp3"))
        self.assertEqual((302, PREVIEWS[2:]), (status, signed_parts(f"{location} ")))
        status, _ = asyncio.run(request(app, "/pieces/2/preview.mp3"))
        self.assertEqual(404, status)


async def request(app: Any, path: str) -> tuple[int, str]:
    """Return the status and the Location of an ASGI application's response to a GET."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await app(scope, receive, send)
    headers = {name: value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers.get(b"location", "")
