# Made by envforge from the environment tf-cpu; do not edit. To make it again: envforge render tf-cpu
# frameworks.tensorflow.version: 2.21.0 - the spec says so
# verdict.tf2onnx-keras3: limit - tf2onnx.convert.from_keras fails on Keras 3 models, which tensorflow 2.21.0 makes (no _get_save_spec)
# frameworks.tensorflow: tensorflow-cpu==2.21.0 - the default index has this build
# base.image: python:3.11-slim-bookworm - no CUDA is needed, so the official slim image of Python 3.11
# python: 3.11 (image) - the base has it

# base: debian:bookworm, glibc 2.36; no digest: its registry gave no digest when the lock was made; the tag may move
FROM python:3.11-slim-bookworm AS base

# uv installs the packages; it lives in this stage only and never reaches the image
FROM base AS uv
RUN --mount=type=bind,source=build,target=/run/envforge/host \
    . /run/envforge/host/host.sh && find_pip \
 && python3 -m pip install --no-cache-dir --no-compile --no-deps --require-hashes --target /run/envforge/installer -r /run/envforge/host/uv.txt

# the image itself
FROM base AS final

# caches lie in /tmp: writable for any user id, also with a read-only root
ENV HOME="/home/envforge" \
    LANG="C.UTF-8" \
    MPLCONFIGDIR="/tmp/envforge-matplotlib" \
    NUMBA_CACHE_DIR="/tmp/envforge-numba" \
    PATH="/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    VIRTUAL_ENV="/opt/env" \
    XDG_CACHE_HOME="/tmp/envforge-cache"

# pip: 35 packages, each checked against the hashes of the lock; uv is mounted, not installed
RUN --mount=type=bind,source=build,target=/run/envforge/host \
    --mount=type=bind,source=locks,target=/run/envforge/locks \
    --mount=type=bind,from=uv,source=/run/envforge/installer,target=/run/envforge/installer \
    --mount=type=cache,target=/run/envforge/cache,sharing=shared \
    . /run/envforge/host/host.sh && /run/envforge/installer/bin/uv venv --quiet --no-project --no-python-downloads --python 3.11 /opt/env \
 && /run/envforge/installer/bin/uv pip install --python /opt/env/bin/python --no-deps --require-hashes -r /run/envforge/locks/pip.default.txt

# user: not root; home and working folder belong to it, everything else stays root's
RUN { getent group 1000 >/dev/null || groupadd --gid 1000 envforge; } \
 && { id -u envforge >/dev/null 2>&1 \
      || useradd --non-unique --no-log-init --uid 1000 --gid 1000 --home-dir /home/envforge \
           --no-create-home --shell /bin/sh envforge; } \
 && install -d -o 1000 -g 1000 -m 0755 /home/envforge /work
WORKDIR /work
USER 1000:1000
CMD ["python"]

# labels come last: the identity changes with every input and must not disturb the layers above
LABEL envforge.base="python:3.11-slim-bookworm" \
    envforge.frameworks="tensorflow=2.21.0" \
    envforge.inputs-digest="sha256:ed6848463095fe79db703edda2cb73adeb68666855c231c3e6bd4bc371874248" \
    envforge.name="tf-cpu" \
    envforge.platform="linux/amd64" \
    envforge.python="3.11" \
    envforge.template="1" \
    envforge.verdict="ok-with-limits" \
    org.opencontainers.image.base.name="python:3.11-slim-bookworm" \
    org.opencontainers.image.description="TensorFlow 2.21.0 without a GPU" \
    org.opencontainers.image.title="tf-cpu" \
    org.opencontainers.image.version="ed6848463095"
