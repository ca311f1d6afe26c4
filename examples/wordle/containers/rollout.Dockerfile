# A rollout box of the Wordle example: wordle-rollout at port 7860, and the follower that
# drives it. From the root of the tree:
#
#     docker build -f examples/wordle/containers/rollout.Dockerfile -t wordle-rollout .
#     docker run --shm-size 256m -e STREAM_URL=s3://bucket/wordle \
#         -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY -p 127.0.0.1:7861:7860 wordle-rollout

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
COPY --from=build /out/usr/local/bin/deltawire /usr/local/bin/
COPY --from=build /build/examples/wordle/wordle-rollout /build/examples/wordle/wordle-train \
    /usr/local/bin/
COPY examples/wordle/containers/rollout.sh /usr/local/bin/start
RUN ldconfig

# As a Space wants it: user 1000, port 7860.
RUN groupadd -g 1000 user && useradd -u 1000 -g 1000 -m user \
    && install -d -o 1000 -g 1000 -m 0750 /bucket
USER 1000:1000
STOPSIGNAL SIGTERM
EXPOSE 7860
ENTRYPOINT ["start"]
