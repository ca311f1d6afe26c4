# A Space of Hugging Face that shows a stream: spaces/README.md says how to make one, and
# spaces/assemble.sh makes its repository, with this file as its Dockerfile.

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
COPY --from=build /out/usr/local/bin/deltawire /usr/local/bin/
COPY deploy/containers/spaces/start.sh /usr/local/bin/start

# Spaces run as user 1000. Only port 7860 can be reached, through their own HTTPS.
RUN groupadd -g 1000 user && useradd -u 1000 -g 1000 -m user
USER 1000:1000
STOPSIGNAL SIGTERM
EXPOSE 7860
ENTRYPOINT ["start"]
