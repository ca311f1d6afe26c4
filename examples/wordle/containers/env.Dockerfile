# The environment of the Wordle example: games over HTTP. From the root of the tree:
#
#     docker build -f examples/wordle/containers/env.Dockerfile -t wordle-env .
#     docker run -p 127.0.0.1:7860:7860 wordle-env

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
        libjansson4 libmicrohttpd12 libpcre2-8-0 libssl3 libutf8proc2 libxxhash0 libzstd1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/usr/local/lib/ /usr/local/lib/
COPY --from=build /build/examples/wordle/wordle-env /usr/local/bin/
RUN ldconfig

# As a Space wants it: user 1000, port 7860.
RUN groupadd -g 1000 user && useradd -u 1000 -g 1000 -m user
USER 1000:1000
STOPSIGNAL SIGTERM
EXPOSE 7860
ENTRYPOINT ["wordle-env"]
CMD ["--listen", "0.0.0.0:7860"]
