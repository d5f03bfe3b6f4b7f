# Made by envforge from the environment torch-cu118; do not edit. To make it again: envforge render torch-cu118
# frameworks.torch.version: 2.7.1+cu118 - the spec says so
# frameworks.torch: torch==2.7.1+cu118 - the spec takes it from pytorch-cu118
# indexes.pytorch-cu118: https://download.pytorch.org/whl/cu118 - the only place for: torch, torchvision, torchaudio
# base.image: python:3.11-slim-bookworm - CUDA comes with the wheels, so the official slim image of Python 3.11
# python: 3.11 (image) - the base has it
# cuda.cudnn: 9.1.0.70 - torch 2.7.1+cu118 was built with it
# cuda: 11.8 from wheels - CUDA libraries come with the wheels, one owner for each; the base stays slim

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

# pip: 33 packages, each checked against the hashes of the lock; uv is mounted, not installed
RUN --mount=type=bind,source=build,target=/run/envforge/host \
    --mount=type=bind,source=locks,target=/run/envforge/locks \
    --mount=type=bind,from=uv,source=/run/envforge/installer,target=/run/envforge/installer \
    --mount=type=cache,target=/run/envforge/cache,sharing=shared \
    . /run/envforge/host/host.sh && /run/envforge/installer/bin/uv venv --quiet --no-project --no-python-downloads --python 3.11 /opt/env \
 && /run/envforge/installer/bin/uv pip install --python /opt/env/bin/python --no-deps --require-hashes -r /run/envforge/locks/pip.default.txt \
 && /run/envforge/installer/bin/uv pip install --python /opt/env/bin/python --no-deps --require-hashes --default-index "$(index_url pytorch-cu118 https://download.pytorch.org/whl/cu118)" -r /run/envforge/locks/pip.pytorch-cu118.txt

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
    envforge.cuda="11.8" \
    envforge.frameworks="torch=2.7.1+cu118" \
    envforge.inputs-digest="sha256:623915e87b5d38231e65afd488eb0faf4d49152145838685b6c097ac706331a8" \
    envforge.name="torch-cu118" \
    envforge.platform="linux/amd64" \
    envforge.python="3.11" \
    envforge.template="1" \
    envforge.verdict="ok" \
    org.opencontainers.image.base.name="python:3.11-slim-bookworm" \
    org.opencontainers.image.description="PyTorch 2.7.1 for CUDA 11.8, the last line for drivers of the 450 to 520 branches" \
    org.opencontainers.image.title="torch-cu118" \
    org.opencontainers.image.version="623915e87b5d"
