# The patched SGLang for CUDA: upstream's release image with our wheel in place of its sglang.
# `scripts/image cuda` builds it and asks for the digest; docs/DEPLOY.md tells more.
ARG BASE_IMAGE
ARG WHEEL_BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

# Stands in for a base that is not given: compose.yaml could not ask for it in one profile only.
FROM ${WHEEL_BASE_IMAGE} AS missing
ARG BASE_IMAGE
RUN if [ -z "$BASE_IMAGE" ]; then \
        echo "BASE_IMAGE is not set; it must be upstream's image with its digest," \
            "docker.io/lmsysorg/sglang:v0.5.23@sha256:DIGEST (docs/DEPLOY.md)." >&2; \
        exit 1; \
    fi

FROM ${WHEEL_BASE_IMAGE} AS wheel
# Any git will do: it only applies the patches, and each file's blob id is checked afterwards.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY patches patches
COPY python python
COPY scripts scripts
# The Python of the base image.
ARG PYTHON=cp312
RUN --mount=type=cache,target=/root/.cache \
    python3 scripts/_patches.py build \
        --flavour cuda --python "$PYTHON" --out /dist --cache /root/.cache/sglang-lz

FROM ${BASE_IMAGE:-missing}
# Upstream's working directory holds the sources of its own installation.
WORKDIR /
# A Debian base guards its Python against pip; this one has no other use.
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    python3 -m pip install --no-compile --no-deps --no-index --no-cache-dir --force-reinstall \
        /dist/*.whl \
    && site="$(python3 -c 'import site; print(site.getsitepackages()[0])')" \
    && { PYTHONHASHSEED=0 python3 -Wignore -m compileall -qq -j0 --invalidation-mode unchecked-hash \
        -x '/sglang/(multimodal_gen|test)/' "$site"/sglang "$site"/sglang_lz \
        "$site"/lz_penalty "$site"/proper_tokens || true; }

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
    FLASHINFER_WORKSPACE_BASE=/cache \
    SGLANG_LZ_HOST=0.0.0.0 \
    SGLANG_LZ_PORT=30000
VOLUME /cache
USER 10001:10001
RUN sglang-lz doctor
EXPOSE 30000
HEALTHCHECK --start-period=30m --interval=5s --timeout=30s --retries=6 \
    CMD ["python3", "-m", "sglang_lz.startup.health"]
ENTRYPOINT ["sglang-lz", "serve"]
CMD ["--end-loops"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="sglang-lz" \
    org.opencontainers.image.description="SGLang with the LZ penalty, on CUDA" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}"
