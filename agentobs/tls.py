"""TLS for servers that other machines can connect to."""

from __future__ import annotations

import ssl
from pathlib import Path

from agentobs.errors import UsageError


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None if it does not use TLS.

    Args:
        cert: a PEM file with the certificate and its chain, from `--tls-cert`.
        key: a PEM file with the key of the certificate, without a passphrase, from `--tls-key`.

    Raises:
        UsageError: only one of certificate and key is given, or they cannot be used.
    """
    if not (cert or key):
        return None
    if not (cert and key):
        missing = "--tls-key" if cert else "--tls-cert"
        raise UsageError("a certificate and its key must be passed together", where=missing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty password, an encrypted key is rejected instead of prompting for its passphrase.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"the certificate or the key cannot be used: {why}",
            where=f"{cert}, {key}",
            todo="Both must be PEM files, the key without a passphrase",
        ) from error
    return context
