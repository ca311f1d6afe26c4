# The trainer's side: publishes the checkpoints that a trainer saves, and has the library for
# those that publish from their own process. From the root of the tree:
#
#     docker build -f deploy/containers/trainer.Dockerfile -t deltawire-trainer .
#     docker run -v output:/checkpoints:ro -v baseline:/baseline \
#         -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY \
#         deltawire-trainer publish s3://bucket/run --watch /checkpoints \
#         --baseline /baseline/run
#
# In a trainer's own image, on Debian 12 or a relative with the packages below:
#
#     COPY --from=deltawire-trainer /usr/local/ /usr/local/
#     RUN ldconfig && cc trainer.c $(pkg-config --cflags --libs deltawire)

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
    && apt-get install -y --no-install-recommends ca-certificates libcurl4 libexpat1 \
        libjansson4 libmicrohttpd12 libssl3 libxxhash0 libzstd1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/usr/local/ /usr/local/
RUN ldconfig

# A volume takes its owner from here the first time it is mounted.
RUN groupadd -g 10001 deltawire \
    && useradd -u 10001 -g 10001 -d /nonexistent -s /usr/sbin/nologin deltawire \
    && install -d -o 10001 -g 10001 -m 0750 /baseline /bucket /checkpoints
USER 10001:10001

# deltawire is process 1: it ends on SIGTERM.
STOPSIGNAL SIGTERM
ENTRYPOINT ["deltawire"]
CMD ["--help"]
