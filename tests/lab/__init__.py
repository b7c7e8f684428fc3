"""A laboratory of machines: network namespaces as hosts, and systemd-nspawn as nodes with a real systemd and a real sshd.

Whoever talks to a lab address does it from inside a lab host (`Host.run`): from anywhere else it is somebody else's address.
"""
