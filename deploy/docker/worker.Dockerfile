# Workers: the program `eps-worker` with LibTorch for the CPU, without a shell.
# deploy/build_images.sh makes the build's context: rootfs/ by rootfs.sh, and an empty folder.
FROM scratch
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="EPS worker" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION" \
  org.opencontainers.image.revision="$REVISION"
COPY rootfs/ /
COPY --chown=65532:65532 empty/ /var/lib/eps/
ENV HOME=/var/lib/eps
WORKDIR /var/lib/eps
USER 65532:65532
ENTRYPOINT ["/usr/bin/eps-worker"]
CMD ["--help"]
