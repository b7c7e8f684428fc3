"""Room pki: the certificate authority; the only user of cryptography."""
