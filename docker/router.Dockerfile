# The router that hands the LZ fields on (docs/DEPLOY.md, Router); `scripts/image router` builds it.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

FROM ${BASE_IMAGE}
# A Debian base guards its Python against pip; this one has no other use.
ARG PIP_BREAK_SYSTEM_PACKAGES=1
ARG PIP_ROOT_USER_ACTION=ignore
# pip's cache is in a mount.
# hadolint ignore=DL3042
RUN --mount=type=bind,source=docker,target=/docker \
    --mount=type=cache,target=/root/.cache \
    python3 -m pip install --no-deps --only-binary :all: --require-hashes \
        --requirement /docker/router.lock \
    && smg launch --help > /dev/null

# useradd writes down the day.
RUN groupadd --gid 10001 sglang \
    && SOURCE_DATE_EPOCH=0 useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home sglang
WORKDIR /
USER 10001:10001
EXPOSE 30000
ENTRYPOINT ["smg", "launch"]
CMD ["--help"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="sglang-lz-router" \
    org.opencontainers.image.description="The router that hands the LZ penalty's fields on" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}"
