# syntax=docker/dockerfile:1
# The image holds one static binary and the iptables programs it starts: everything else goes to the kernel directly.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY internal internal
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /kube-ipvs ./cmd/kube-ipvs

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /kube-ipvs /usr/local/bin/kube-ipvs
ENTRYPOINT ["kube-ipvs"]
CMD ["run"]
