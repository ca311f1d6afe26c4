# A machine of the rollout: vLLM with the back end `deltawire`, and a follower beside it. From
# the root of the tree:
#
#     docker build -f examples/trl-wordle/rollout.Dockerfile -t wordle-rollout .
#     docker run --gpus 1 -p 8000:8000 -e MODEL=Qwen/Qwen3-0.6B -e STREAM_URL=s3://bucket/run \
#         -e AWS_ACCESS_KEY_ID -e AWS_SECRET_ACCESS_KEY wordle-rollout
#
# vLLM's control interface asks for no key: publish its port only to the trainer's network.
FROM vllm/vllm-openai:v0.32.0
WORKDIR /src
COPY scripts/install-deps.sh scripts/
RUN scripts/install-deps.sh build && apt-get install -y --no-install-recommends python3-dev tini \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cmake -B /build -DDW_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr/local \
    && cmake --build /build -j "$(nproc)" && cmake --install /build --strip \
    && pip install --no-cache-dir . && rm -rf /build
COPY examples/trl-wordle/rollout.sh /usr/local/bin/
ENV VLLM_SERVER_DEV_MODE=1
EXPOSE 8000 9470
ENTRYPOINT ["tini", "-g", "--", "/usr/local/bin/rollout.sh"]
