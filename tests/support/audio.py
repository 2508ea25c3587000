"""Audio for the tests: generated sources, real runs of ffmpeg and their outputs.

A run uses the exact command line of the service, with the source as descriptor 3. Unlike the
service it is synchronous: one process after another, with everything in memory. A source that is
rendered in several ways is decoded once, by one process.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import subprocess
import tempfile
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    EncryptedSource,
    IrregularSource,
    NothingDecoded,
    ProbeFailed,
    RenderFailed,
    WrongLength,
)
from audioproxy.files.scratch_files import AnonymousFile, AnonymousSpace
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.decoding import measure_arguments, piece_arguments, single_process
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import (
    build_pipeline,
    encoder_arguments,
    loudness_arguments,
    source_loudness_arguments,
    stated_length,
)
from audioproxy.media.command.gaps import may_have_gaps
from audioproxy.media.command.needs import Needs
from audioproxy.media.conversion import SOXR
from audioproxy.media.diagnostics import classify
from audioproxy.media.encryption import is_encrypted
from audioproxy.media.ffprobe import lacks_pictures, parse_probe, probe_arguments
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.media.lengths.containers import read_length, run_reader
from audioproxy.media.lengths.wav import MUCH_SPACE
from audioproxy.media.loudness import LoudnessParser, Measurement
from audioproxy.media.probe import Check, Probe
from audioproxy.media.reading import Reader, SourceLength
from audioproxy.media.samples import check_samples, examine_start, probe_samples
from audioproxy.media.seek_point import DEPENDING_ON_START, SeekPoint
from audioproxy.media.signatures import TAG_DEMUXER, identify, may_be_misdetected
from audioproxy.media.streams import COUNTED_SECONDS
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.seek_points import SeekPoints
from audioproxy.sources.excerpt import open_excerpt
from tests.support.linked_programs import start_linked
from tests.support.programs import FFMPEG, FFPROBE
from tests.support.servers import PATIENCE, wait
from tests.support.sounds import keep
from tests.support.stores import FakeSource

#: As in the service, a child process inherits nothing else from the environment (D45).
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}

_TOTAL_SIZE = re.compile(rb"^total_size=(?:(\d+)|N/A)$", re.MULTILINE)
_OPEN = [FFMPEG, "-nostdin", "-hide_banner", "-v", "error"]
# Floats hold 24 bits exactly.
_FLOATS = "-c:a pcm_f32le -f wav"
# The subformat of WAVE_FORMAT_EXTENSIBLE, after the tag of the format.
_SUBFORMAT = bytes.fromhex("000000001000800000aa00389b71")

Samples = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples with one row per channel; full scale is 1."""

    rate: int
    channels: Samples

    def __len__(self) -> int:
        return self.channels.shape[1]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sound)
            and self.rate == other.rate
            and np.array_equal(self.channels, other.channels)
        )

    def part(self, start: int, end: int | None = None) -> Sound:
        """Return the samples from ``start`` to ``end``."""
        return Sound(self.rate, self.channels[:, start:end])


# Runs


def run(
    arguments: Sequence[str],
    source: bytes = b"",
    stdout: int = subprocess.PIPE,
    more: Sequence[int] = (),
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with ``source`` as its seekable descriptor 3.

    :param more: further descriptors to pass on.
    """
    with ExitStack() as stack:
        # Programs read and write them as pipes, because their URLs say so.
        read, given, out, errors = (
            stack.enter_context(open(os.memfd_create("audio"), "w+b", buffering=0))
            for _ in range(4)
        )
        read.write(source)
        given.write(stdin)
        given.seek(0)
        opened = os.open(f"/dev/fd/{read.fileno()}", os.O_RDONLY)
        stack.callback(os.close, opened)
        printed = out.fileno() if stdout == subprocess.PIPE else stdout
        inherited = {0: given.fileno(), 1: printed, 2: errors.fileno(), SOURCE_DESCRIPTOR: opened}
        inherited |= {descriptor: descriptor for descriptor in more}
        pid = start_linked(arguments, inherited, ENVIRONMENT)
        status = wait(pid) if pid is not None else _run_unlinked(arguments, inherited)
        for file in (out, errors):
            file.seek(0)
        # The service, too, keeps the last 8 KiB of a child's stderr.
        return subprocess.CompletedProcess(arguments, status, out.read(), errors.read()[-8192:])


def _run_unlinked(arguments: Sequence[str], inherited: Mapping[int, int]) -> int:
    """Run a program, and return its exit status."""
    # The shell opens the file as descriptor 3 and then replaces itself with the program.
    source = f"/proc/{os.getpid()}/fd/{inherited[SOURCE_DESCRIPTOR]}"
    return subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" 3<"$0"', source, *arguments],
        stdin=inherited[0],
        stdout=inherited[1],
        stderr=inherited[2],
        pass_fds=[number for number in inherited if number > SOURCE_DESCRIPTOR],
        env=ENVIRONMENT,
        timeout=PATIENCE,
        check=False,
    ).returncode


def options_of(text: str) -> VariantOptions:
    """Parse options as spelled in a URL, such as ``f:wav/t:1:2``."""
    return parse_options(text.encode().split(b"/"))[0]


@cache
def probe(source: bytes) -> Probe:
    """Probe a source as the service does."""
    size, opened = len(source), local_input()
    if size > MUCH_SPACE:
        start = run_in_memory(lambda read: run_reader(read, size, examine_start(size)), source)
        if start is not None:
            opened = replace(opened, is_pcm=start.is_pcm, forward=start.has_space)
    ended = run(probe_arguments("ffprobe", opened), source)
    tagged = b""
    if may_be_misdetected(ended.stdout, failed=bool(ended.returncode)):
        first = ended.stdout
        proven = run_in_memory(lambda read: identify(read, size, first), source)
        if proven is not None:
            if proven.start:
                tags = replace(opened, demuxer=TAG_DEMUXER)
                tagged = run(probe_arguments("ffprobe", tags), source).stdout
            opened = replace(opened, demuxer=proven.demuxer, skipped=proven.start)
            ended = run(probe_arguments("ffprobe", opened), source)
    if ended.returncode:
        described = run_in_memory(lambda read: probe_samples(read, size), source)
        if described is None:
            raise (classify(ended.stderr) or ProbeFailed)(repr(ended.stderr[-2000:]))
        return described
    if lacks_pictures(ended.stdout):
        ended = run(probe_arguments("ffprobe", opened, seconds=COUNTED_SECONDS), source)
    found = parse_probe(ended.stdout, ended.stderr, tagged=tagged)
    found = found.with_file(demuxer=opened.demuxer, skipped=opened.skipped, is_pcm=opened.is_pcm)
    if Check.ENCRYPTION in found.pending:
        if run_in_memory(lambda read: is_encrypted(read, size), source):
            raise EncryptedSource
        found = found.checked(Check.ENCRYPTION)
    if Check.JOINED_FILES in found.pending:
        found = found.with_length(find_length_of(source, found)).checked(Check.JOINED_FILES)
    if Check.SAMPLES in found.pending:

        async def decode(start: int) -> bytes:
            return run(piece_arguments("ffmpeg", input_of(found), found, start), source).stdout

        return run_in_memory(lambda read: check_samples(read, size, found, decode), source)
    return found


def input_of(found: Probe) -> Input:
    """Return the input of a probed source, as the service opens it."""
    return found.open_with(local_input())


@cache
def probe_length(source: bytes) -> Probe:
    """Probe a source, and find its length as the service does."""
    found = probe(source)
    return found.with_length(find_length_of(source, found))


def find_length_of(source: bytes, found: Probe) -> SourceLength | None:
    """Find the length of a source in memory."""
    return run_in_memory(lambda read: read_length(read, len(source), found), source)


def run_in_memory(
    begin: Callable[[Callable[[int, int], Coroutine[Any, Any, bytes]]], Coroutine[Any, Any, T]],
    source: bytes,
) -> T:
    """Return the result of a coroutine for a function that reads a source in memory."""

    async def read(offset: int, count: int) -> bytes:
        return source[offset : offset + count]

    try:
        begin(read).send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a read from memory does not wait")


def search(reader: Reader[T], source: bytes) -> T | None:
    """Return the result of a reader of a source in memory; None where it is malformed."""
    return run_in_memory(lambda read: run_reader(read, len(source), reader), source)


@cache
def measure(source: bytes) -> Probe:
    """Probe a source, and measure its duration by decoding it."""
    found = probe_length(source)
    ended = run(measure_arguments("ffmpeg", input_of(found), found), source)
    sizes = _TOTAL_SIZE.findall(ended.stdout)
    if ended.returncode or not sizes:
        raise (classify(ended.stderr) or RenderFailed)(repr(ended.stderr[-2000:]))
    return found.with_decoded_samples(int(sizes[-1] or 0))


def render(source: bytes, text: str) -> bytes:
    """Render a source and return the output's bytes, or raise the refusal."""
    return render_all(source, [text])[text]


def render_all(
    source: bytes, texts: Iterable[str], ffmpeg: str = "ffmpeg", resampler: str = SOXR
) -> dict[str, bytes]:
    """Render a source in several ways, or raise the refusal of one of them.

    The service, too, renders again with a decoder, or once it knows more about the length of the
    source.
    """
    listed, rendered = list(texts), {}
    for process in _plan(source, listed, ffmpeg, resampler):
        try:
            rendered |= process.run(source)
        except (IrregularSource, NothingDecoded):
            for text in process.outputs:
                rendered[text] = _render_again(source, text, ffmpeg, resampler)
    return {text: rendered[text] for text in listed}


def _render_again(source: bytes, text: str, ffmpeg: str, resampler: str) -> bytes:
    known: dict[str, bool] = {}
    while True:
        (process,) = _plan(source, [text], ffmpeg, resampler, **known)
        try:
            return process.run(source)[text]
        except (IrregularSource, NothingDecoded) as refusal:
            found = _FOUND[type(refusal)]
            if found in known or (found == "measured" and process.outputs[text].measured):
                raise
            known[found] = True


# What an attempt has found out, by its refusal.
_FOUND = {IrregularSource: "irregular", WrongLength: "wrong_length", NothingDecoded: "measured"}


def render_once(
    source: bytes, texts: Iterable[str], ffmpeg: str = "ffmpeg", *, irregular: bool
) -> dict[str, bytes]:
    """Render a source in one attempt, or raise the refusal.

    :param irregular: as a node that knows the source as irregular, with a decoder of its own.
    """
    plan = _plan(source, texts, ffmpeg, irregular=irregular)
    return dict(ChainMap(*(process.run(source) for process in plan)))


def find_probe(source: bytes, options: VariantOptions) -> Probe:
    """Probe a source, and find its length where the service does."""
    found = probe(source)
    needs = Needs.of(options, found)
    if needs.length:
        return probe_length(source)
    if needs.seek:
        return found.with_time_stamps(find_length_of(source, found))
    return found


def find_point(source: bytes, options: VariantOptions, found: Probe) -> SeekPoint | None:
    """Find the place at which a render starts to decode a source in memory."""
    points = SeekPoints(lambda work: succeed(work()))
    with closing(FakeSource(len(source), source)) as opened:
        finding = points.find(opened, options, found)
        return SynchronousTestCase().successResultOf(Deferred.fromCoroutine(finding))


def copy_excerpt(source: bytes, point: SeekPoint, skipped: int) -> bytes:
    """Return what ffmpeg reads in place of a source, which the service has copied.

    :param skipped: bytes ahead of the container.
    """

    async def copy() -> bytes:
        space, deadline = AnonymousSpace(), Deadline(Clock(), 1)
        copying = open_excerpt(opened, point, skipped, space, lambda w: succeed(w()), deadline)
        async with copying as excerpt:
            with excerpt.inherit() as descriptors:
                return Path(f"/dev/fd/{descriptors[SOURCE_DESCRIPTOR]}").read_bytes()

    with closing(FakeSource(len(source), source)) as opened:
        opened.is_far = True
        return SynchronousTestCase().successResultOf(Deferred.fromCoroutine(copy()))


def _plan(
    source: bytes,
    texts: Iterable[str],
    ffmpeg: str = "ffmpeg",
    resampler: str = SOXR,
    *,
    irregular: bool = False,
    wrong_length: bool = False,
    measured: bool = False,
) -> list[_Process]:
    """Return the processes that render a source in several ways.

    They open the source once for all outputs that open it alike and have no delay, also none of
    silence in gaps. With others among them, ffmpeg 7 may never end.

    :param measured: the source is measured even where the options do not require it.
    """
    plan: dict[object, _Process] = {}
    for text in texts:
        options = options_of(text)
        found = replace(find_probe(source, options), irregular=irregular)
        if wrong_length:
            found = found.without_length()
        if measured or Needs.of(options, found).measure:
            found = replace(measure(source), irregular=irregular)
        if not irregular or found.codec in DEPENDING_ON_START:
            found = replace(found, seek_point=find_point(source, options, found))
        pipeline = build_pipeline(
            encoder_arguments, ffmpeg, input_of(found), options, found, resampler
        )
        command, decoder = pipeline.encoder, pipeline.decoder or []
        behind = command.index("-i") + 2
        is_delayed = options.norm or options.enhance or (not irregular and may_have_gaps(found))
        delayed = text if is_delayed else ""
        key = (*decoder, *command[:behind], delayed, found.seek_point)
        new = _Process(tuple(decoder), command[:behind], {}, {}, found.seek_point)
        process = plan.setdefault(key, new)
        process.outputs[text], process.words[text] = found, command[behind:-1]
    return list(plan.values())


@dataclass(frozen=True)
class _Process:
    """A run of ffmpeg that renders a source in several ways.

    :ivar decoder: the command line of the process ahead of it, where the source is irregular.
    :ivar opened: the words up to the source.
    :ivar outputs: what is known about the source, by options.
    :ivar words: those of each output, without its destination.
    :ivar point: where decoding starts, if the service has found a place for that.
    """

    decoder: tuple[str, ...]
    opened: list[str]
    outputs: dict[str, Probe]
    words: dict[str, list[str]]
    point: SeekPoint | None = None

    def input_of(self, source: bytes) -> bytes:
        """Return what ffmpeg opens: the source, a part of it, or what the decoder outputs of it."""
        if self.point is not None and self.point.head:
            found = next(iter(self.outputs.values()))
            source = copy_excerpt(source, self.point, found.skipped)
        return decode_irregular(source, self.decoder) if self.decoder else source

    def run(self, source: bytes) -> dict[str, bytes]:
        """Return the outputs; raise NothingDecoded if one of them has no audio."""
        with ExitStack() as stack:
            words, descriptors, outputs = [], [], {}
            for text, found in self.outputs.items():
                spool, options = stack.enter_context(closing(AnonymousFile())), options_of(text)
                assert spool.descriptor > SOURCE_DESCRIPTOR
                encoder, stated = ENCODERS[options.f], stated_length(options, found)
                least = encoder.tagged_header_bytes(found.carried_tags)
                outputs[text] = EncodedFile(spool, least, stated)
                words += [*self.words[text], f"pipe:{spool.descriptor}"]
                descriptors.append(spool.descriptor)
            # Of several outputs, `empty_output` detects only that all are empty.
            words = ["empty_output_stream" if word == "empty_output" else word for word in words]
            stdin = self.input_of(source) if self.decoder else b""
            read = source if self.decoder else self.input_of(source)
            ended = run([*self.opened, *words], read, more=descriptors, stdin=stdin)
            pipeline = single_process(words, next(iter(self.outputs.values())))
            if self.decoder:
                pipeline = replace(pipeline, decoder=list(self.decoder))
            succeeded = not ended.returncode
            pipeline.check(ended.stderr, succeeded=succeeded)
            refusal = None if succeeded else classify(ended.stderr) or RenderFailed
            for text, output in outputs.items():
                output.complete()
                encoder, tags = ENCODERS[options_of(text).f], self.outputs[text].carried_tags
                if encoder.encoded_nothing(output.encoded_bytes(output.written), tags):
                    refusal = refusal or NothingDecoded
            if refusal is None:
                return {text: output.read(0, output.written) for text, output in outputs.items()}
        raise refusal(repr(ended.stderr[-2000:]))


@lru_cache(maxsize=4)
def decode_irregular(source: bytes, decoder: tuple[str, ...]) -> bytes:
    """Return the samples of an irregular source."""
    return run(decoder, source).stdout


def render_and_decode(source: bytes, text: str) -> Sound:
    """Render a source and decode the output."""
    return render_and_decode_all(source, [text])[text]


def render_and_decode_all(
    source: bytes, texts: Iterable[str], resampler: str = SOXR
) -> dict[str, Sound]:
    """Render a source in several ways and decode the outputs."""
    outputs = render_all(source, texts, resampler=resampler)
    # One or two frames are too few to detect these formats.
    forms = {text: options_of(text).f for text in outputs}
    return decode_all(outputs, {t: form for t, form in forms.items() if form in ("aac", "mp3")})


def decode_all(files: Mapping[T, bytes], demuxers: Mapping[T, str] = {}) -> dict[T, Sound]:
    """Decode files by name with one process.

    :param demuxers: the format of files for which it is not detected.
    """
    # A simple wav file needs no ffmpeg, which takes long to start.
    packed = {name: file for name, file in files.items() if not _is_simple_wav(file)}
    decoded = {name: read_wav(file) for name, file in files.items() if name not in packed}
    if packed:
        words, decoding = [*_OPEN], []
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, file) in enumerate(packed.items()):
                path = Path(folder, str(number))
                path.write_bytes(file)
                words += ["-f", demuxers[name]] if name in demuxers else []
                words += ["-i", str(path)]
                decoding += ["-map", f"{number}:a:0", *_FLOATS.split(), f"{path}.wav"]
            ended = run(words + decoding)
            assert ended.returncode == 0, ended.stderr
            for number, name in enumerate(packed):
                decoded[name] = read_wav(Path(folder, f"{number}.wav").read_bytes())
    return {name: decoded[name] for name in files}


def _is_simple_wav(file: bytes) -> bool:
    """Return whether a file is PCM or 32-bit float in wav, which needs no ffmpeg."""
    tag = file[44:60] if file[20:22] == b"\xfe\xff" else file[20:22] + _SUBFORMAT
    simple = {b"\1\0" + _SUBFORMAT: (8, 16, 24, 32), b"\3\0" + _SUBFORMAT: (32,)}
    return file[:4] == b"RIFF" and file[34] in simple.get(tag, ())


@cache
def decode(source: bytes) -> Sound:
    """Decode the first audio stream of any file."""
    return decode_all({"": source})[""]


def convert(source: bytes, *words: str, name: str = "out") -> bytes:
    """Convert a source with ffmpeg into a seekable file and return the content of the file."""
    return convert_all(source, {name: " ".join(words)})[name]


def convert_all(
    source: bytes, forms: Mapping[str, str], more: str = "", given: str = ""
) -> dict[str, bytes]:
    """Convert a source to several forms with one run of ffmpeg; return the outputs by name.

    :param forms: ffmpeg options by name; a name's extension sets the container if the options do
        not.
    :param more: options that add another input.
    :param given: options of a source whose format ffmpeg does not detect.
    """

    def make() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, name) for name in forms}
            outputs = [word for name in forms for word in (*forms[name].split(), paths[name])]
            ended = run([*opened, *outputs], source)
            assert ended.returncode == 0, ended.stderr
            return {name: Path(path).read_bytes() for name, path in paths.items()}

    opened = [*_OPEN, *given.split(), "-i", "file:/dev/fd/3", *more.split()]
    named = [word for form in forms.items() for word in form]
    return keep(FFMPEG, [*opened, *named], make, source)


def describe(source: bytes) -> dict[str, Any]:
    """Return everything that ffprobe reports about a file."""
    words = "-v error -of json -show_format -show_streams -i file:/dev/fd/3"
    response: dict[str, Any] = json.loads(run([FFPROBE, *words.split()], source).stdout)
    return response


@cache
def measure_loudness(source: bytes, text: str | None = None) -> Measurement:
    """Measure the loudness of a render, or of the source itself."""
    parser = LoudnessParser()
    parser.add(run(_loudness_command(source, text), source).stdout)
    return parser.finish()


def _loudness_command(source: bytes, text: str | None) -> list[str]:
    if text is None:
        found = probe(source)
        return source_loudness_arguments("ffmpeg", input_of(found), VariantOptions(), found)
    options = options_of(text)
    found = measure(source) if Needs.of(options, probe(source)).measure else probe_length(source)
    return loudness_arguments("ffmpeg", input_of(found), options, found)


# Files


def write_wav(sound: Sound, depth: str = "16", mask: int | None = None) -> bytes:
    """Return a wav file of a sound; ``depth`` is 8, 16, 24, 32 or 32f."""
    width, count, frames = int(depth.rstrip("f")) // 8, len(sound.channels), sound.channels.T
    if depth == "32f":
        data = frames.tobytes()
    else:
        whole = np.rint(np.clip(frames.astype(np.float64), -1, 1) * ((1 << (8 * width - 1)) - 1))
        if width == 1:
            whole += 128
        # The integers are little-endian: the first bytes of each hold the value.
        data = whole.astype("<i4").reshape(-1, 1).view(np.uint8)[:, :width].tobytes()
    tag = struct.pack("<H", 3 if depth == "32f" else 1)
    frame = count * width
    form = struct.pack("<HIIHH", count, sound.rate, sound.rate * frame, frame, width * 8)
    if mask is None:
        return riff(tag + form, data)
    form += struct.pack("<HHI", 22, width * 8, mask)
    return riff(b"\xfe\xff" + form + tag + _SUBFORMAT, data)


def riff(form: bytes, data: bytes) -> bytes:
    """Return a wav file with a format chunk and samples."""
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def read_wav(file: bytes) -> Sound:
    """Read a wav file of any depth; the stated size may be too large, as in a streamed file."""
    assert file[:4] == b"RIFF" and file[8:12] == b"WAVE", file[:12]
    at, tag, count, rate, width = 12, 0, 0, 0, 0
    while (name := file[at : at + 4]) != b"data":
        (size,) = struct.unpack_from("<I", file, at + 4)
        if name == b"fmt ":
            tag, count, rate, _, _, bits = struct.unpack_from("<HHIIHH", file, at + 8)
            width = bits // 8
            if tag == 0xFFFE:
                (tag,) = struct.unpack_from("<H", file, at + 32)
        at += 8 + size + size % 2
    (size,) = struct.unpack_from("<I", file, at + 4)
    body = file[at + 8 :][:size]
    body = body[: len(body) // (width * count) * width * count]
    if tag == 3:
        samples = np.frombuffer(body, "<f4")
    elif width == 1:
        samples = (np.frombuffer(body, np.uint8) - np.float32(128)) / 128
    else:
        # Shift each sample to the top of 32 bits, so that all depths have one full scale.
        left = np.zeros((len(body) // width, 4), np.uint8)
        left[:, 4 - width :] = np.frombuffer(body, np.uint8).reshape(-1, width)
        samples = left.view("<i4")[:, 0].astype(np.float32) / 2**31
    return Sound(rate, samples.astype(np.float32).reshape(-1, count).T)


# Sounds


def silence(rate: int, length: int, channels: int = 1) -> Sound:
    """Return digital silence."""
    return constant(rate, length, *[0] * channels)


def constant(rate: int, length: int, *values: float) -> Sound:
    """Return a sound with one constant value per channel."""
    return Sound(rate, np.array(values, np.float32)[:, None].repeat(length, axis=1))


def tone(rate: int, length: int, *hertz: float, amplitude: float = 0.5) -> Sound:
    """Return a sound with one sine per channel."""
    turns = np.outer(hertz, np.arange(length)) / rate
    return Sound(rate, (amplitude * np.sin(2 * np.pi * turns)).astype(np.float32))


def chord(rate: int, length: int, hertz: Iterable[float], amplitude: float) -> Sound:
    """Return the sum of sines of one amplitude, as one channel."""
    sines = tone(rate, length, *hertz, amplitude=amplitude).channels
    return Sound(rate, sines.sum(axis=0, keepdims=True))


def noise(
    rate: int, length: int, channels: int = 1, amplitude: float = 0.25, seed: int = 1
) -> Sound:
    """Return pseudorandom noise, which does not repeat."""
    values = np.frombuffer(random.Random(seed).randbytes(2 * length * channels), "<i2")
    samples = (values * (amplitude / 32768)).astype(np.float32)
    return Sound(rate, samples.reshape(channels, length))


def join(*sounds: Sound) -> Sound:
    """Return the channels of sounds of equal length as one sound."""
    return Sound(sounds[0].rate, np.concatenate([sound.channels for sound in sounds]))
