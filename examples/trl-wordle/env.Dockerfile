# The environment: Wordle over HTTP. From this folder:
#
#     docker build -f env.Dockerfile -t wordle-env . && docker run -p 8800:8800 wordle-env
FROM python:3.12-slim
COPY env.py /app/env.py
USER 10001:10001
EXPOSE 8800
HEALTHCHECK --interval=10s --timeout=5s CMD python -c \
    "import urllib.request as u; u.urlopen('http://127.0.0.1:8800/healthz', timeout=4)"
CMD ["python", "/app/env.py", "--host", "0.0.0.0"]
