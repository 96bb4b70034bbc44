# The image contains one static binary, the iptables programs that it starts, and their libraries: no shell, no package manager.
# docs/install.md describes how to build it with any builder and without a public registry.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
ARG VERSION=dev
ARG COMMIT=
# The same sources, commit and Go version give the same bytes in any directory.
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w -buildid= -X main.version=${VERSION} -X main.commit=${COMMIT}" \
      -o "${OUT:-/out}/kube-ipvs" ./cmd/kube-ipvs

# The agent uses the iptables variant that the host's kubelet uses, so the image has both.
FROM ${BASE_IMAGE} AS rootfs
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/*
# Copy all extensions: iptables-save fails on a foreign rule whose extension is missing. ldd lists the libraries of the programs and
# extensions, and dpkg-query the packages whose licenses must be in the image.
RUN set -eu; root=${ROOTFS:-/rootfs}; \
    copy() { mkdir -p "$root${1%/*}"; cp -L "$1" "$root$1"; }; \
    mkdir -p "$root/run" "$root/etc"; \
    set -- /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi \
      /usr/lib/*/xtables/libxt_*.so /usr/lib/*/xtables/libipt_*.so /usr/lib/*/xtables/libip6t_*.so; \
    libraries=$(ldd "$@" | sed -n 's|^.* => \(/[^ ]*\) .*|\1|p; s|^[[:space:]]*\(/[^ ]*\) (.*|\1|p' | sort -u); \
    for file in "$@" $libraries; do copy "$file"; done; \
    for command in iptables ip6tables; do for variant in nft legacy; do for suffix in "" -save -restore; do \
      ln -s "xtables-$variant-multi" "$root/usr/sbin/$command-$variant$suffix"; \
    done; done; done; \
    for file in "$@" $libraries; do readlink -f "$file"; done | sed 'p; s|^/usr||' \
      | { xargs dpkg-query -S 2>/dev/null || true; } | sed 's|:.*||' | sort -u \
      | while read -r package; do copy "/usr/share/doc/$package/copyright"; done

FROM scratch
ARG VERSION=dev
ARG COMMIT=
LABEL org.opencontainers.image.title="kube-ipvs" \
      org.opencontainers.image.source="https://github.com/kube-ipvs/kube-ipvs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=rootfs /rootfs/ /
COPY LICENSE /usr/share/doc/kube-ipvs/copyright
COPY --from=build /out/kube-ipvs /usr/local/bin/kube-ipvs
ENV PATH=/usr/local/bin:/usr/sbin
ENTRYPOINT ["/usr/local/bin/kube-ipvs"]
CMD ["run"]
