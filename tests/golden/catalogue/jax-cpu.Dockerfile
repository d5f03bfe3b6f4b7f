# Made by envforge from the environment jax-cpu; do not edit. To make it again: envforge render jax-cpu
# frameworks.jax.version: 0.10.2 - the spec says so
# frameworks.jax: jax==0.10.2 - the default index has this build
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

# pip: 30 packages, each checked against the hashes of the lock; uv is mounted, not installed
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
    envforge.frameworks="jax=0.10.2" \
    envforge.inputs-digest="sha256:265e0330ab0d2f8af0cdf6529d67169e50169511d30cd811fcaa9b10ec8f27b9" \
    envforge.name="jax-cpu" \
    envforge.platform="linux/amd64" \
    envforge.python="3.11" \
    envforge.template="1" \
    envforge.verdict="ok" \
    org.opencontainers.image.base.name="python:3.11-slim-bookworm" \
    org.opencontainers.image.description="JAX 0.10.2 without a GPU, with flax and optax" \
    org.opencontainers.image.title="jax-cpu" \
    org.opencontainers.image.version="265e0330ab0d"
