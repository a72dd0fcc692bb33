"""Copies memory between servers of one machine through loopback sockets.

Only the calls that upstream's backend makes. The library itself needs a GPU's libraries to load.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Sequence
from typing import BinaryIO

# Where a block goes and how long it is, in bytes; length 0 asks whether all blocks have arrived.
HEADER = struct.Struct("<QQ")
DONE = b"\0"


class TransferEngine:
    """Writes into the registered memory of other engines, and lets them write into its own."""

    def initialize(self, hostname: str, metadata: str, protocol: str, device: str) -> int:
        """Listen on a free port of `hostname`; nothing else is needed here."""
        del metadata, protocol, device
        self._regions: dict[int, int] = {}
        self._links: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()
        self._listener = socket.create_server((hostname, 0))
        threading.Thread(target=self._listen, daemon=True).start()
        return 0

    def get_rpc_port(self) -> int:
        """The port that the other side's `session` names."""
        port: int = self._listener.getsockname()[1]
        return port

    def batch_register_memory(self, addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """Let others write there."""
        self._regions.update(zip(addresses, lengths, strict=True))
        return 0

    def batch_unregister_memory(self, addresses: Sequence[int]) -> int:
        """Let nobody write there any more."""
        for address in addresses:
            del self._regions[address]
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Copy blocks of memory to the engine at `session` ("host:port"); 0 when they are there."""
        with self._lock:
            if session not in self._links:
                host, port = session.rsplit(":", 1)
                self._links[session] = socket.create_connection((host, int(port))).makefile("rwb")
            link = self._links[session]
            for source, target, length in zip(sources, targets, lengths, strict=True):
                if length:
                    link.write(HEADER.pack(target, length))
                    link.write(ctypes.string_at(source, length))
            link.write(HEADER.pack(0, 0))
            link.flush()
            return 0 if link.read(len(DONE)) == DONE else -1

    def _listen(self) -> None:
        while True:
            link, _ = self._listener.accept()
            threading.Thread(
                target=self._receive, args=(link.makefile("rwb"),), daemon=True
            ).start()

    def _receive(self, link: BinaryIO) -> None:
        while header := link.read(HEADER.size):
            target, length = HEADER.unpack(header)
            if length == 0:
                link.write(DONE)
                link.flush()
                continue
            inside = (
                start <= target and target + length <= start + size
                for start, size in self._regions.items()
            )
            assert any(inside), "a write outside of all registered memory"
            ctypes.memmove(target, link.read(length), length)
