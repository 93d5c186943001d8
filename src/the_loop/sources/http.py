"""One HTTP request, bounded in time and size; what goes wrong is a SourceError.

Proxies and certificate stores are taken from the environment ($HTTPS_PROXY, $SSL_CERT_FILE, …).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx2

from the_loop.sources.base import Silent, SourceError, Unanswered

_LIMIT_S: Final = 30.0  # for a request without a limit of its own


class TooMuch(Unanswered):
    """The server could not collect the response in its time (502, 504), or it is over our limits (`is_sure`)."""

    def __init__(self, problem: str, *, is_sure: bool = False) -> None:
        super().__init__(problem)
        self.is_sure = is_sure


class Http:
    """The connections of one client. They are opened with the first request, and again after `close`."""

    def __init__(self, headers: Mapping[str, str], transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._headers = headers
        self._transport = transport
        self._http: httpx2.AsyncClient | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        shown: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limit_s: float,
        size: int,
    ) -> tuple[httpx2.Response, bytes]:
        """The response and its content of at most `size` bytes, within `limit_s` seconds in total.

        `shown` stands for the URL in errors. Raises SourceError.
        """
        http = self._opened()
        try:
            async with (
                asyncio.timeout(limit_s),
                http.stream(method, url, headers=headers, content=body, timeout=httpx2.Timeout(limit_s)) as response,
            ):
                parts, received = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    received += len(part)
                    if received > size:
                        raise TooMuch(f"{shown}: the response is larger than {size} bytes", is_sure=True)
                return response, b"".join(parts)
        except TimeoutError as error:
            raise Silent(f"{shown}: no response within {limit_s:.0f} s") from error
        except (httpx2.LocalProtocolError, UnicodeEncodeError):
            # the error's own text would quote the headers, including the token
            raise SourceError(f"{shown}: the request cannot be sent") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            kind = Silent if isinstance(error, httpx2.TimeoutException) else Unanswered
            raise kind(f"{shown}: {_cause(error)}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _opened(self) -> httpx2.AsyncClient:
        """The HTTP client. Raises SourceError for a wrong proxy in the environment."""
        if self._http is None:
            timeout = httpx2.Timeout(_LIMIT_S)
            try:
                self._http = httpx2.AsyncClient(transport=self._transport, timeout=timeout, headers=self._headers)
            except ImportError as error:
                problem = "cannot use the SOCKS proxy of the environment: the extra `socks` of httpx2 is not installed"
                raise SourceError(problem, "check $ALL_PROXY, $HTTPS_PROXY and $HTTP_PROXY") from error
            except (ValueError, httpx2.InvalidURL, OSError) as error:
                problem = f"cannot use the proxy or the certificates of the environment: {_cause(error)}"
                hint = "check $HTTPS_PROXY, $HTTP_PROXY, $ALL_PROXY, $SSL_CERT_FILE and $SSL_CERT_DIR"
                raise SourceError(problem, hint) from error
        return self._http


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
