#ifndef EPS_WIRE_CHANNEL_H_
#define EPS_WIRE_CHANNEL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_builder.h"

namespace eps {

inline constexpr int kProtocolVersion = 1;

// Limit of the transport: CreateJob, PrepareJob and JoinReply carry a spec of at most 16 MiB. The
// readers of all other messages enforce kMaxMessageBytes.
inline constexpr int kMaxControlMessageBytes = (16 << 20) + (1 << 20);

// Both sides ping, so each notices within about half a minute that its peer is gone. A server must
// permit pings at this interval, or gRPC closes the connection ("too_many_pings").
inline constexpr int kKeepAliveTimeMs = 20'000;
inline constexpr int kKeepAliveTimeoutMs = 10'000;
inline constexpr int kMinPingIntervalMs = 10'000;

// A server closes a connection whose TLS handshake is not complete after this time.
inline constexpr int kHandshakeTimeoutMs = 10'000;

// Streams that a client may have open on one connection. gRPC's client holds later ones back until
// one ends. A worker, a driver and a server open fewer than ten.
inline constexpr int kMaxStreamsPerConnection = 64;

// Bytes that a stream may have received but not yet read: four slices, so that the sender continues
// while one is decoded. docs/adr/0005-fixed-stream-window.md says why the window is fixed.
inline constexpr int kStreamWindowBytes = 8 << 20;
inline constexpr int kMaxFrameBytes = 1 << 20;
// Sizes of gRPC's reads from a socket; its default minimum is 8 KiB.
inline constexpr int kMinReadBytes = 64 << 10;
inline constexpr int kReadBytes = 256 << 10;
inline constexpr int kMaxReadBytes = 4 << 20;

// Prepares the process for gRPC and its messages. NewChannel calls it; a server must call it
// itself. Thread-safe and cheap to repeat.
//
// It keeps the library initialised until the process ends. Otherwise destroying the last channel or
// server shuts the library down, which takes up to 10 s if a socket was being written (gRPC 1.51's
// backup poller). It also makes malloc retain freed memory, up to 256 MiB in each of its arenas:
// gRPC allocates receive buffers of megabytes, and faulting in every page again would cost more
// than receiving the data.
void KeepGrpcInitialised();

// Whether connections to, and a server at, this address use TLS: if this process has an identity
// (wire/security/identity.h), and the address is not loopback or the identity covers loopback.
bool UsesTls(absl::string_view address);

// Returns a channel with its own connection, message limits and keep-alive, with TLS if
// UsesTls(address). It sends no compressed message and accepts none.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address);

// Sets the same limits and keep-alive for a server, a port that no other process can share, and
// kMaxStreamsPerConnection. The server answers a compressed message with UNIMPLEMENTED before it is
// inflated.
void SetServerOptions(grpc::ServerBuilder* builder);

// Has a server end each connection at about that age, so that its peer connects again, with the
// certificate that it has then, and with an authority that is still valid. Calls that are open get
// 1/100 of the age more, at least a second, and end with UNAVAILABLE: clients continue them. 0 sets
// no limit.
void SetConnectionAge(uint64_t age_ms, grpc::ServerBuilder* builder);

// Checks "HOST:PORT" with a port in 1…65535 (0 too if `allow_any_port`). Returns InvalidArgument.
absl::Status CheckAddress(absl::string_view address, bool allow_any_port);
// Returns whether the host part is a loopback address or "localhost".
bool IsLoopback(absl::string_view address);

}  // namespace eps

#endif  // EPS_WIRE_CHANNEL_H_
