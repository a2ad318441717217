"""TLS: make the `ssl.SSLContext` of an address from its options, which have redis-py's names."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock.core.errors import ConfigError, did_you_mean

__all__ = ["check_tls_options", "tls_context"]

#: What the server's certificate must be. redis-py writes None for "none".
_VERIFY_MODES = {
    None: ssl.CERT_NONE,
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_KNOWN = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)


def check_tls_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that `tls_context` cannot apply: none is ignored silently."""
    for name, value in options.items():
        if name.startswith("ssl_") and name not in _KNOWN and value:
            raise ConfigError(
                f"Penstock does not support {name}, which this client has: give a URL, or another client; "
                f"the options of TLS are {', '.join(_KNOWN)}"
            )
    asked = options.get("ssl_cert_reqs")
    if not isinstance(asked, ssl.VerifyMode) and asked not in _VERIFY_MODES:
        known = [name for name in _VERIFY_MODES if name]
        hint = did_you_mean(str(asked), known)
        raise ConfigError(f"ssl_cert_reqs={asked!r} is not one of {', '.join(known)}{hint}")


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the context for these options. The authorities of the system are trusted, and those given.

    A context is made again when one of its files has changed, so that renewed certificates are used; to make
    one takes 25 ms, mostly for the authorities of the system. Raises OSError, ValueError.
    """
    paths = ssl.get_default_verify_paths()
    files = [options.get(name) for name in _FILES] + [paths.cafile, paths.capath]
    facts = sorted((name, _hashable(value)) for name, value in options.items() if name in _KNOWN)
    return _made(tuple(facts), tuple(map(_stamp, files)))


def _hashable(value: Any) -> Any:
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return tuple(value) if isinstance(value, (list, set)) else value


def _stamp(file: str | None) -> tuple[int, ...]:
    """Return what changes when the file does."""
    try:
        found = os.stat(file or "")
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _made(facts: tuple[tuple[str, Any], ...], stamps: tuple[tuple[int, ...], ...]) -> ssl.SSLContext:
    options = dict(facts)
    asked = options.get("ssl_cert_reqs", "required")
    verify_mode = asked if isinstance(asked, ssl.VerifyMode) else _VERIFY_MODES[asked]
    check_hostname = options.get("ssl_check_hostname")
    context = ssl.create_default_context()
    context.check_hostname = False  # it cannot be on while the mode is CERT_NONE
    context.verify_mode = verify_mode
    context.check_hostname = verify_mode != ssl.CERT_NONE and (check_hostname is None or bool(check_hostname))
    for flag in options.get("ssl_include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in options.get("ssl_exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    if (least := options.get("ssl_min_version")) is not None:
        context.minimum_version = ssl.TLSVersion(int(least))
    if ciphers := options.get("ssl_ciphers"):
        context.set_ciphers(ciphers)
    _load_files(context, options)
    return context


def _load_files(context: ssl.SSLContext, options: Mapping[str, Any]) -> None:
    certificate: Any = options.get("ssl_certfile")
    key, ca_file = options.get("ssl_keyfile"), options.get("ssl_ca_certs")
    ca_path, ca_data = options.get("ssl_ca_path"), options.get("ssl_ca_data")
    try:
        if certificate or key:
            context.load_cert_chain(certificate, key, options.get("ssl_password"))
        if ca_file or ca_path or ca_data:
            context.load_verify_locations(ca_file, ca_path, ca_data)
    except FileNotFoundError as error:  # which does not name the file
        missing = [file for file in (certificate, key, ca_file) if file and not os.path.exists(file)]
        raise FileNotFoundError(error.errno, error.strerror, *missing[:1]) from None
