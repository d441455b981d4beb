"""A certificate that vouches for itself: whoever is handed it knows a server by it."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID: Final = dt.timedelta(days=3650)  # longer than any run; its key ends with the lab
BEFORE: Final = dt.timedelta(days=1)  # clocks of machines differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A server's certificate and its private key.

    Attributes:
        pem: The certificate: what clients trust.
        key_pem: The key, which only the server may have.
    """

    pem: bytes
    key_pem: bytes


def certificate_for(address: str) -> Certificate:
    """A new certificate of a server at this IP address, signed by itself (ECDSA, P-256)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gemini_lab etcd")])
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + VALID)
        .add_extension(host, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        pem=made.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
