# Workers for NVIDIA's GPUs: the program `eps-worker` with both halves of LibTorch and the libraries
# of CUDA that they load, without a shell, and without the driver, which the container runtime adds.
# deploy/build_images.sh --cuda makes the build's context: rootfs/ by rootfs.sh, an empty folder.
FROM scratch
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="EPS worker for CUDA" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION" \
  org.opencontainers.image.revision="$REVISION"
COPY rootfs/ /
COPY --chown=65532:65532 empty/ /var/lib/eps/
# What NVIDIA's container runtime reads: the devices and the parts of the driver to add.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Where runtimes and device plugins put the driver, if not in a folder of Debian.
ENV LD_LIBRARY_PATH=/usr/lib64:/usr/local/nvidia/lib64
ENV HOME=/var/lib/eps
WORKDIR /var/lib/eps
USER 65532:65532
ENTRYPOINT ["/usr/bin/eps-worker"]
CMD ["--help"]
