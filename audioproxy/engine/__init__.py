"""Everything below HTTP: sources, the variant store, ffmpeg, slots and renders."""

from audioproxy.config import BootError
from audioproxy.engine.engine import Engine
from audioproxy.engine.parts import Parts, build

__all__ = ["BootError", "Engine", "Parts", "build"]
