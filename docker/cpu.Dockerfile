# The patched SGLang on a CPU, with SmolLM2-135M-Instruct: docker run -p 127.0.0.1:30000:30000 IMAGE
# `scripts/image cpu` builds it; docs/DEPLOY.md tells more.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${BASE_IMAGE} AS wheel
# Any git will do: it only applies the patches, and each file's blob id is checked afterwards.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY patches patches
COPY python python
COPY scripts scripts
RUN --mount=type=cache,target=/root/.cache \
    python3 scripts/_patches.py build \
        --flavour cpu --out /dist --cache /root/.cache/sglang-lz

FROM ${BASE_IMAGE}
# Where PyTorch's CPU build is; its hash is in docker/torch.lock.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# A Debian base guards its Python against pip; this one has no other use.
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
# Bytecode belongs in the image: without it a start on a read-only file system takes twice as long.
# Unchecked, as no file here changes, it does not depend on when it was made either. SGLang has
# models of its own; some packages carry files for other Pythons, which cannot be compiled. What no
# server on a CPU opens is left out: GPU tools, C++ headers, tests. pip's cache is in a mount.
# hadolint ignore=DL3042
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=cache,target=/root/.cache \
    python3 -m pip install --no-compile --no-deps --only-binary :all: --require-hashes \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        --requirement /docker/torch.lock --requirement /docker/cpu.lock \
    && python3 -m pip install --no-compile --no-deps --no-index /dist/*.whl \
    && site="$(python3 -c 'import site; print(site.getsitepackages()[0])')" \
    && rm -rf "$site"/triton/backends/*/bin "$site"/triton/backends/*/lib/cupti \
        "$site"/torch/include "$site"/torch/test "$site"/torch/bin/test_* \
    && { PYTHONHASHSEED=0 python3 -Wignore -m compileall -qq -j0 --invalidation-mode unchecked-hash \
        -x '/sglang/(multimodal_gen|test)/|/transformers/models/.*/mod(eling|ular)_' "$site" || true; }

# The model that is served by default, so that a start needs no network.
ENV SGLANG_LZ_MODELS=/opt/models
RUN sglang-lz models smollm2-135m

# useradd writes down the day. Clusters that choose the user themselves choose group 0 for it.
RUN groupadd --gid 10001 sglang \
    && SOURCE_DATE_EPOCH=0 useradd --uid 10001 --gid 10001 --home-dir /cache --no-create-home sglang \
    && install --directory --owner 10001 --group 0 --mode 775 /cache
# Engines hand their proxy on, which could not reach the server for its own warm-up.
ENV NO_PROXY=127.0.0.1,localhost \
    no_proxy=127.0.0.1,localhost \
    HOME=/cache \
    USER=sglang \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    NUMBA_CACHE_DIR=/cache/numba \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    SGLANG_LZ_HOST=0.0.0.0 \
    SGLANG_LZ_PORT=30000
VOLUME /cache
WORKDIR /
USER 10001:10001
RUN sglang-lz doctor
EXPOSE 30000
HEALTHCHECK --start-period=5m --interval=5s --timeout=30s --retries=6 \
    CMD ["python3", "-m", "sglang_lz.startup.health"]
ENTRYPOINT ["sglang-lz", "serve"]
CMD ["--end-loops"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="sglang-lz" \
    org.opencontainers.image.description="SGLang with the LZ penalty, on a CPU" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}"
