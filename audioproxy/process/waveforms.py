"""Waveforms: a thread reduces the samples that ffmpeg decodes into a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING

from audioproxy.errors import OutputTooLarge, RenderFailed
from audioproxy.log_context import Logger
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.process.decoder import Decoder, DecoderPipe
from audioproxy.threads import ThreadRunner, await_uncancelled, run_detached

if TYPE_CHECKING:
    from audioproxy.process.waveform_reader import WaveformReader

# Bytes of blocks that are kept in memory. More blocks, for many pixels, go into a file.
_MAX_MEMORY_BYTES = 4 * 1024 * 1024

_log = Logger()


class Waveforms:
    """Renders the waveforms of sources that ffmpeg decodes."""

    def __init__(self, decoder: Decoder, in_thread: ThreadRunner) -> None:
        """Create a renderer of waveforms.

        :param in_thread: writes the documents.
        """
        self._decoder = decoder
        self._in_thread = in_thread

    async def render_waveform(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        output: int,
        timeout: float,
        spec: WaveformSpec,
        limit: int,
    ) -> None:
        """Decode a source once, and write the document of its waveform.

        :param arguments: a command that outputs raw 16-bit samples.
        :param output: the descriptor that the document is written to after decoding.
        :param timeout: seconds.
        :param limit: bytes of the document.
        :raises OutputTooLarge: for a larger document.
        :raises NothingDecoded: where no sample is decoded.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises RenderTimeout, UndecodableSource, RenderFailed: as `Encoder.encode`.
        """
        spool = SpooledTemporaryFile(_MAX_MEMORY_BYTES)  # noqa: SIM115
        try:
            read = partial(_reduce, spec, spool)
            reader = await self._decoder.decode(arguments, descriptors, timeout, read)
            await await_uncancelled(self._in_thread(partial(reader.write, output, limit)))
        except OutputTooLarge as refusal:
            _log.warn("a waveform was dropped: {why}", why=refusal.message)
            raise
        except OSError as error:
            _log.warn("a waveform cannot be written: {error}", error=error)
            raise RenderFailed("The waveform could not be written to the disk.") from error
        finally:
            # The removal of a large file takes time.
            run_detached(self._in_thread, spool.close)


def _reduce(spec: WaveformSpec, spool: IO[bytes], pipe: DecoderPipe) -> WaveformReader:
    # Imported late, so that a service without waveforms does not load numpy. That saves a fifth of
    # its memory and of its start time.
    from audioproxy.process.waveform_reader import WaveformReader

    reader = WaveformReader(spec, spool)
    reader.read(pipe)
    return reader
