"""Moved to `audioproxy.grammar.options`."""

from audioproxy.grammar.options import describe_defaults as describe_defaults
from audioproxy.grammar.options import describe_options as describe_options
