# Made by envforge from the environment torch-cu124; do not edit. To make it again: envforge render torch-cu124
# frameworks.torch.version: 2.6.0 - the spec says so
# frameworks.torch: torch==2.6.0 - the default index has this build
# base.image: python:3.11-slim-bookworm - CUDA comes with the wheels, so the official slim image of Python 3.11
# python: 3.11 (image) - the base has it
# cuda.cudnn: 9.1.0.70 - torch 2.6.0 was built with it
# cuda: 12.4 from wheels - CUDA libraries come with the wheels, one owner for each; the base stays slim

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
ENV CUDA_CACHE_PATH="/tmp/envforge-cuda" \
    HOME="/home/envforge" \
    LANG="C.UTF-8" \
    MPLCONFIGDIR="/tmp/envforge-matplotlib" \
    NUMBA_CACHE_DIR="/tmp/envforge-numba" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    NVIDIA_VISIBLE_DEVICES="all" \
    PATH="/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    TORCHINDUCTOR_CACHE_DIR="/tmp/envforge-inductor" \
    TRITON_CACHE_DIR="/tmp/envforge-triton" \
    VIRTUAL_ENV="/opt/env" \
    XDG_CACHE_HOME="/tmp/envforge-cache"

# pip: 34 packages, each checked against the hashes of the lock; uv is mounted, not installed
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
    envforge.cuda="12.4" \
    envforge.frameworks="torch=2.6.0" \
    envforge.inputs-digest="sha256:b838afb6cea65969e05ff29afb18c52f023a59c4a0b27d4427652fb8d8d8ae0f" \
    envforge.name="torch-cu124" \
    envforge.platform="linux/amd64" \
    envforge.python="3.11" \
    envforge.template="1" \
    envforge.verdict="ok" \
    org.opencontainers.image.base.name="python:3.11-slim-bookworm" \
    org.opencontainers.image.description="PyTorch 2.6.0 for CUDA 12.4" \
    org.opencontainers.image.title="torch-cu124" \
    org.opencontainers.image.version="b838afb6cea6"
