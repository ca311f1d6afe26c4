#!/usr/bin/env python3
"""Prints N ports of HOST that nobody listens on: scripts/free-ports.py [HOST [N]].

They are below the range that the kernel gives to outgoing connections, so that nobody takes one
before its server has started, or while the server is away.
"""
import errno
import random
import socket
import sys


def free_ports(host, n):
    found = set()
    while len(found) < n:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = random.randrange(12000, 32000)
            try:
                probe.bind((host, port))
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    sys.exit(f"cannot listen on {host}: {e.strerror}")
                continue
            found.add(port)
    return list(found)


if __name__ == "__main__":
    host = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    print(*free_ports(host, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
