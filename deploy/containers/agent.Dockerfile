# The agent: follows a stream beside an engine, or shows one. From the root of the tree:
#
#     docker build -f deploy/containers/agent.Dockerfile -t deltawire-agent .
#     docker run -v weights:/weights -v "$PWD/token:/run/secrets/token:ro" \
#         -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY -p 127.0.0.1:9470:9470 \
#         deltawire-agent follow s3://bucket/run --into /weights/model \
#         --listen 0.0.0.0:9470 --plain --token-file /run/secrets/token
#
# podman: --format docker, else the health check is lost.

# ---- build: the same in every container file here, so that a cache serves them all ----
FROM debian:12-slim AS build
WORKDIR /src
COPY scripts/install-deps.sh scripts/
RUN scripts/install-deps.sh build && rm -rf /var/lib/apt/lists/*
COPY . .
ARG JOBS
RUN cmake -B /build -DDW_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr/local \
    && cmake --build /build -j "${JOBS:-$(nproc)}" \
    && DESTDIR=/out cmake --install /build --strip
# ---- run -------------------------------------------------------------------------------
FROM debian:12-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl libcurl4 libexpat1 \
        libjansson4 libmicrohttpd12 libssl3 libxxhash0 libzstd1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/usr/local/bin/deltawire /usr/local/bin/

# A volume takes its owner from here the first time it is mounted.
RUN groupadd -g 10001 deltawire \
    && useradd -u 10001 -g 10001 -d /nonexistent -s /usr/sbin/nologin deltawire \
    && install -d -o 10001 -g 10001 -m 0750 /weights /bucket
USER 10001:10001

# deltawire is process 1: it ends on SIGTERM, after it has resumed the engine.
STOPSIGNAL SIGTERM
EXPOSE 9470
ENV HEALTH_URL=http://127.0.0.1:9470/healthz
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD curl -fskS -o /dev/null "$HEALTH_URL"
ENTRYPOINT ["deltawire"]
CMD ["--help"]
