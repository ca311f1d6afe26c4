# A machine with systemd and deltawire installed from its build, for the tests alone.
FROM localhost/deltawire-build
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl dbus python3 systemd \
        systemd-sysv \
    && rm -rf /var/lib/apt/lists/*
RUN cmake --install /build && cmake --install /build --component systemd \
    && systemd-sysusers
COPY engine.py /usr/local/bin/engine
# Credentials are mounts that a child of systemd makes, and must reach the others.
CMD ["sh", "-c", "mount --make-rshared / && exec /lib/systemd/systemd"]
