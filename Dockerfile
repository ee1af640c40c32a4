# The production image: one static program and root certificates, nothing else.
# `--no-default-features` leaves out `strata dev` and everything it needs.
FROM docker.io/library/rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev gcc g++ make cmake perl
WORKDIR /src
COPY . .
RUN cargo build --release --locked --no-default-features --package strata \
    && cp target/release/strata /strata

FROM gcr.io/distroless/static-debian13:nonroot
COPY --from=build /strata /strata
USER 65532:65532
ENTRYPOINT ["/strata"]
