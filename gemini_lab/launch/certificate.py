"""Certificates of a lab's own: by them the lab's etcd and its clients know one another."""

import datetime as dt
import ipaddress
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gemini_lab.node.etcd_address import OwnCertificates

VALID: Final = dt.timedelta(days=3650)  # longer than any run; the keys end with the lab
BEFORE: Final = dt.timedelta(days=1)  # clocks of machines differ


class Authority(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What signs the certificates of a lab's etcd; whoever has its key can be a member or a client.

    Attributes:
        pem: Its certificate: what members and clients trust.
        key_pem: Its key.
    """

    pem: str
    key_pem: str

    @classmethod
    def make(cls) -> "Authority":
        """A new one (ECDSA, P-256)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("gemini_lab authority")
        made = (
            _unsigned(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = made.public_bytes(serialization.Encoding.PEM)
        return cls(pem=pem.decode(), key_pem=_pem_of(key).decode())

    def certify(self, address: str | None = None) -> OwnCertificates:
        """Return a new certificate of a server at this IP address, or, without one, of a client."""
        authority = x509.load_pem_x509_certificate(self.pem.encode())
        signs = serialization.load_pem_private_key(self.key_pem.encode(), password=None)
        assert isinstance(signs, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        wanted = _unsigned(_named("gemini_lab etcd"), authority.subject, key.public_key())
        if address is not None:
            host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            wanted = wanted.add_extension(host, critical=False)
        made = wanted.sign(signs, hashes.SHA256())
        return OwnCertificates(
            authority_pem=self.pem,
            pem=made.public_bytes(serialization.Encoding.PEM).decode(),
            key_pem=_pem_of(key).decode(),
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + VALID)
    )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
