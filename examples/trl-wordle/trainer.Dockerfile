# The trainer. From the root of the tree:
#
#     docker build -f examples/trl-wordle/trainer.Dockerfile -t wordle-trainer .
#     docker run --gpus 1 -e WORDLE_URL=http://env:8800 -e AWS_ACCESS_KEY_ID \
#         -e AWS_SECRET_ACCESS_KEY wordle-trainer --model Qwen/Qwen3-0.6B --tools \
#         --url s3://bucket/run --servers http://gpu1:8000,http://gpu2:8000
#
# On vLLM's image, since TRL's rollouts import it.
FROM vllm/vllm-openai:latest
WORKDIR /src
COPY scripts/install-deps.sh scripts/
RUN scripts/install-deps.sh build && apt-get install -y --no-install-recommends python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN pip install --no-cache-dir . trl==1.16.0 accelerate datasets kernels
WORKDIR /src/examples/trl-wordle
ENTRYPOINT ["python3", "train.py"]
