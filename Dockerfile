# Two images from one file:
#   docker build --target cpu --tag kappaplace:cpu .
#   docker build --target gpu --tag kappaplace:gpu .   # run with --gpus all; needs the NVIDIA container toolkit
FROM python:3.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/kappaplace
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src

# torch without CUDA: gigabytes less.
FROM build AS build-cpu
RUN PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    /opt/kappaplace/bin/pip install -c constraints.txt '.[serve,faiss,heic]'

# The registry's torch for Linux brings its own CUDA libraries; the driver comes from the host.
FROM build AS build-gpu
RUN /opt/kappaplace/bin/pip install -c constraints.txt '.[serve,faiss,heic]'

FROM python:3.11-slim-bookworm AS run
RUN useradd --create-home --uid 10001 kappaplace
ENV PATH=/opt/kappaplace/bin:$PATH PYTHONUNBUFFERED=1 KAPPAPLACE_CACHE=/home/kappaplace/cache
USER 10001
# A mount over it keeps downloads between runs.
RUN mkdir /home/kappaplace/cache
WORKDIR /home/kappaplace
EXPOSE 8000
# Only `serve` answers; other commands end long before the first look.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["kappaplace"]
CMD ["--help"]

FROM run AS gpu
COPY --from=build-gpu /opt/kappaplace /opt/kappaplace

FROM run AS cpu
COPY --from=build-cpu /opt/kappaplace /opt/kappaplace
