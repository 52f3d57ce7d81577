# Servers, driver and tools: the program `eps`, without LibTorch and without a shell.
# deploy/build_images.sh makes the build's context: rootfs/ by rootfs.sh, and an empty folder.
FROM scratch
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="EPS server" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION" \
  org.opencontainers.image.revision="$REVISION"
COPY rootfs/ /
# A new volume at one of these folders takes over its owner.
COPY --chown=65532:65532 empty/ /var/lib/eps/
COPY --chown=65532:65532 empty/ /out/
COPY --chown=65532:65532 empty/ /certs/ca/
COPY --chown=65532:65532 empty/ /certs/server/
COPY --chown=65532:65532 empty/ /certs/worker/
COPY --chown=65532:65532 empty/ /certs/driver/
COPY --chown=65532:65532 empty/ /certs/scheduler/
ENV HOME=/var/lib/eps
WORKDIR /out
USER 65532:65532
ENTRYPOINT ["/usr/bin/eps"]
CMD ["--help"]
