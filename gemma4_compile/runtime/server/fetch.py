"""Fetches media from hosts that the server's operator named, and from nowhere else.

Who asks for a picture by its address decides where this machine connects to. So hosts are named,
their addresses are public ones, and the connection goes to the address that was looked at; a
redirect is held to the same.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

MAX_REDIRECTS = 3
_PIECE = 1 << 16
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_AGENT = "gemma4-serve"
_LOOKING_AT_A_TIME = (
    8  # names: one that nobody answers for keeps its thread until the system ends it
)
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NEVER_PUBLIC = (  # whatever this version of Python thinks of them
    ipaddress.ip_network("3fff::/20"),  # documentation
    ipaddress.ip_network("192.0.0.0/24"),  # of protocols, with the machine's own translator
    ipaddress.ip_network("192.88.99.0/24"),  # the next translator
    ipaddress.ip_network("168.63.129.16/32"),  # Azure's own service in every network of Azure
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)  # before an IPv4 address, in the second half of one

Resolve = Callable[[str, int], list[str]]


class FetchError(Exception):
    """The reason of a failure, for the client."""


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one address, redirects included.

    Attributes
    ----------
    lookup_seconds : for the addresses of a name
    connect_seconds : for each of them to answer; then the next one is tried
    """

    most_bytes: int = 20 << 20
    seconds: float = 10.0
    lookup_seconds: float = 4.0
    connect_seconds: float = 3.0


def resolve(host: str, port: int) -> list[str]:
    """Addresses of a host, as the system finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


class Fetcher:
    """Fetches what an address names."""

    def __init__(
        self,
        hosts: Collection[str],
        limits: FetchLimits | None = None,
        find_addresses: Resolve = resolve,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        hosts : `host` or `host:port`, in small letters; without a port those of http and https. An
            address in the place of a name may be a private one: then it was named itself.
        """
        self._hosts = frozenset(hosts)
        self._limits = limits or FetchLimits()
        self._resolve = find_addresses
        self._looking = threading.Semaphore(_LOOKING_AT_A_TIME)

    def get(self, url: str) -> bytes:
        """The content; FetchError if it cannot or must not be had, or breaks a limit."""
        deadline = time.monotonic() + self._limits.seconds
        for _ in range(MAX_REDIRECTS + 1):
            parts, port = self._checked(url)
            addresses = self._addresses(str(parts.hostname), port, deadline)
            connected = self._connect(str(parts.hostname), addresses, port, deadline)
            content, moved = self._ask(parts, port, connected, deadline)
            if moved is None:
                return content
            url = _joined(url, moved)
        raise FetchError(f"more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str) -> tuple[SplitResult, int]:
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise FetchError(f"it is no address: {error}") from error
        if parts.scheme not in _PORTS or not parts.hostname:
            raise FetchError("expected an http or https address with a host")
        if parts.username is not None or parts.password is not None:
            raise FetchError("an address with a user's name is not fetched")
        if any(letter <= " " or letter > "~" for letter in url):
            raise FetchError("expected an address of printable ASCII letters")
        host = parts.hostname
        usual = port == _PORTS[parts.scheme]
        if f"{host}:{port}" not in self._hosts and not (usual and host in self._hosts):
            named = ", ".join(sorted(self._hosts)) or "none"
            raise FetchError(f"`{host}:{port}` is not among the hosts that are allowed ({named})")
        return parts, port

    def _addresses(self, host: str, port: int, deadline: float) -> list[str]:
        """The addresses to connect to; of a name all must be public."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        found = self._look_up(host, port, deadline)
        for address in found:
            if not _is_public(address):
                raise FetchError(f"`{host}` leads to {address}, which is no public address")
        if not found:
            raise FetchError(f"`{host}` has no address")
        return found

    def _look_up(self, host: str, port: int, deadline: float) -> list[str]:
        """Ask the system, which is as patient as it likes, in a thread that may be left."""
        seconds = self._left(deadline, self._limits.lookup_seconds)
        end = time.monotonic() + seconds
        if not self._looking.acquire(timeout=seconds):
            raise FetchError(f"`{host}` is not looked up: too many names are already")
        answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

        def look() -> None:
            try:
                answers.put(self._resolve(host, port))
            except Exception as error:
                answers.put(error)
            finally:
                self._looking.release()

        threading.Thread(target=look, name="look-up", daemon=True).start()
        try:
            found = answers.get(timeout=max(end - time.monotonic(), 0))
        except queue.Empty as error:
            raise FetchError(f"`{host}` is not found within {seconds:.0f} s") from error
        if isinstance(found, (OSError, UnicodeError)):
            raise FetchError(f"`{host}` is not found: {found}") from found
        if isinstance(found, Exception):
            raise found
        return found

    def _connect(
        self, host: str, addresses: Sequence[str], port: int, deadline: float
    ) -> socket.socket:
        """A connection to the first address that answers."""
        why: OSError | None = None
        for address in addresses:
            seconds = self._left(deadline, self._limits.connect_seconds)
            try:
                connected = socket.create_connection((address, port), timeout=seconds)
            except OSError as error:
                why = error
                continue
            connected.settimeout(max(deadline - time.monotonic(), 0.001))
            return connected
        raise FetchError(f"no connection to `{host}`: {why}") from why

    def _left(self, deadline: float, most: float) -> float:
        """Seconds for a step; FetchError where there are none."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        return min(left, most)

    def _ask(
        self, parts: SplitResult, port: int, connected: socket.socket, deadline: float
    ) -> tuple[bytes, str | None]:
        """The content, or where it has moved."""
        host = str(parts.hostname)
        late = threading.Event()
        # A timeout of the socket begins anew with every byte; this one does not. Its descriptor is
        # its own: TLS takes over that of the socket.
        guard = connected.dup()
        watch = threading.Timer(max(deadline - time.monotonic(), 0), _end, (guard, late))
        watch.daemon = True
        watch.start()
        wrapped: socket.socket | None = None
        try:
            if parts.scheme == "https":
                wrapped = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
            connection = http.client.HTTPConnection(host, port)
            connection.sock = wrapped or connected
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"User-Agent": _AGENT, "Accept": "*/*"})
            return self._read(connection.getresponse(), late)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.is_set():
                raise self._late() from error
            raise FetchError(f"`{host}` does not answer as it should: {error}") from error
        finally:
            watch.cancel()
            for each in (wrapped, connected, guard):
                if each is not None:
                    each.close()

    def _read(
        self, response: http.client.HTTPResponse, late: threading.Event
    ) -> tuple[bytes, str | None]:
        moved = response.getheader("Location")
        if response.status in _REDIRECTS and moved is not None:
            return b"", moved
        if response.status != 200:
            raise FetchError(f"the host answers with status {response.status}")
        most = self._limits.most_bytes
        if (response.length or 0) > most:
            raise self._too_long()
        content = bytearray()
        while piece := response.read1(_PIECE):
            content += piece
            if len(content) > most:
                raise self._too_long()
        if late.is_set():
            raise self._late()
        if response.length:
            raise FetchError(f"the host ends {response.length} bytes too early")
        return bytes(content), None

    def _too_long(self) -> FetchError:
        return FetchError(f"it has more than {self._limits.most_bytes} bytes")

    def _late(self) -> FetchError:
        return FetchError(f"it did not arrive within {self._limits.seconds:g} s")


def _joined(url: str, moved: str) -> str:
    try:
        return urljoin(url, moved)
    except ValueError as error:  # of what a host writes, such as brackets that do not close
        raise FetchError(f"the host redirects to what is no address: {error}") from error


def _is_public(address: str) -> bool:
    """Return whether an address is one of the internet, and all that are written into it are."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if any(found in network for network in _NEVER_PUBLIC):
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast
    # Ways to the internet of version 4, of which Python's versions think differently.
    if found in _NAT64 or found.ipv4_mapped is not None:
        return all(_is_public(str(inner)) for inner in _written_into(found))
    if found not in _GLOBAL_UNICAST or not found.is_global or found.is_multicast:
        return False
    return all(_is_public(str(inner)) for inner in _written_into(found))


def _written_into(found: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """IPv4 addresses in one of version 6, to which a tunnel or translator would lead."""
    number = int(found)
    last = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if found in _NAT64 or found.ipv4_mapped is not None or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield last
    if found.sixtofour is not None:
        yield found.sixtofour
    if found.teredo is not None:
        yield from found.teredo


def _end(connected: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it is closed already
        connected.shutdown(socket.SHUT_RDWR)
