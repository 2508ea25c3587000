"""Moved to `audioproxy.grammar.request`."""

from audioproxy.grammar.request import clamp as clamp
from audioproxy.grammar.request import expired as expired
