# The production image: one static program and helm on root certificates and little else.
# `--no-default-features` leaves out `strata dev` and everything it needs.
# All three tags move. Name the bases by digest where a build must be repeatable.
ARG BUILD_BASE=docker.io/library/rust:1.95-alpine
ARG GO_BASE=docker.io/library/golang:1.26-alpine
ARG BASE=gcr.io/distroless/static-debian13:nonroot

FROM ${BUILD_BASE} AS build
RUN apk add --no-cache musl-dev gcc g++ make cmake perl
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --no-default-features --package strata \
    && cp target/dist/strata /strata

FROM ${GO_BASE} AS helm
WORKDIR /src
COPY tools/helm .
RUN CGO_ENABLED=0 go build -trimpath -o /helm helm.sh/helm/v4/cmd/helm

FROM ${BASE}
COPY --from=build /strata /strata
COPY --from=helm /helm /helm
USER 65532:65532
ENTRYPOINT ["/strata"]
