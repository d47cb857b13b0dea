# The image of the agent, the wrapper and the command line: two static executables and nothing else.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# A static-pie that resolves names with no NSS library beside it.
RUN RUSTFLAGS="-C target-feature=+crt-static" \
    cargo build --profile image --locked --no-default-features --target "$(rustc -vV | sed -n 's/^host: //p')" --bin kaa --bin kaa-engine \
    && cp target/*/image/kaa target/*/image/kaa-engine /

FROM scratch
COPY --from=build /kaa /kaa-engine /usr/local/bin/
ENV PATH=/usr/local/bin
USER 1000:1000
ENTRYPOINT ["/usr/local/bin/kaa"]
