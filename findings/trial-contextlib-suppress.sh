#!/bin/sh
# A test module for trial cannot import contextlib.suppress by its name.
#
# Trial takes an attribute "suppress" of a test, of its class or of its module for a list of warnings
# to be ignored. With `from contextlib import suppress`, each test of the module ends as an error before
# its first line, and the traceback names Twisted alone, or nothing. Under another name, the same class
# has no effect.
#
# Seen with Twisted 24.11.0 and 26.4.0 of PyPI:
#
#     24.11.0: TypeError: 'ABCMeta' object is not iterable; with another name: ok
#     26.4.0: TypeError: 'ABCMeta' object is not iterable; with another name: ok
#
# Exits with 1 if that changes. It needs Python with venv, and 60 MB in a temporary folder.

set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv

write_test() {
    cat >test_it.py <<END
$1
from twisted.trial.unittest import SynchronousTestCase


class Tests(SynchronousTestCase):
    def test_it(self):
        with $2(KeyError):
            {}["missing"]
END
}

run() {
    if venv/bin/python -Bm twisted.trial test_it >output 2>&1; then
        echo ok
    else
        grep -o "TypeError: .*" output
    fi
}

describe() {
    venv/bin/pip install --quiet --disable-pip-version-check "twisted==$1"
    write_test 'from contextlib import suppress' suppress
    named=$(run)
    write_test 'import contextlib' contextlib.suppress
    echo "$1: $named; with another name: $(run)"
}

found=$(describe 24.11.0; describe 26.4.0)
echo "$found"
fault="TypeError: 'ABCMeta' object is not iterable; with another name: ok"
[ "$found" = "24.11.0: $fault
26.4.0: $fault" ]
