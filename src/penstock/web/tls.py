"""The certificate of a listener, which can be replaced while it serves."""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.core.errors import ConfigError


class Tls:
    """TLS 1.2 or later with the certificate chain and key of two PEM files. Raises ConfigError."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context = self._now = self.read()
        # called also for clients that name no server; a context that gets a certificate with a key of another
        # type would keep both
        self.context.sni_callback = self._use_newest

    def reload(self) -> None:
        """Read the files again; new connections get the new certificate.

        Raises ConfigError if the files do not fit; the old certificate stays.
        """
        self.use(self.read())

    def use(self, context: ssl.SSLContext) -> None:
        """Give new connections the certificate of this context, which `read` has returned."""
        self._now = context

    def _use_newest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._now

    def read(self) -> ssl.SSLContext:
        """What the files have now. Raises ConfigError if they do not fit."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=self._no_password)
        except ssl.SSLError as error:
            why = error.reason or str(error)
            raise ConfigError(
                f"{self._certificate} and {self._key} are not a certificate and its key in PEM: {why}"
            ) from error
        except OSError as error:
            for path in (self._certificate, self._key):
                if not path.is_file():
                    raise ConfigError(f"{path}: there is no such file") from error
            raise ConfigError(
                f"{self._certificate}, {self._key}: {error.strerror or 'cannot be read'}"
            ) from error

    def _no_password(self) -> str:
        raise ConfigError(f"{self._key} is encrypted: give a key without a password")
