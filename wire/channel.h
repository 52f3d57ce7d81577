#ifndef EPS_WIRE_CHANNEL_H_
#define EPS_WIRE_CHANNEL_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server_builder.h"

namespace eps {

inline constexpr int kProtocolVersion = 1;

// What the transport lets through: CreateJob, PrepareJob and JoinReply carry a spec of at most
// 16 MiB. All other messages are held to kMaxMessageBytes by who reads them.
inline constexpr int kMaxControlMessageBytes = (16 << 20) + (1 << 20);

// Both sides ping: a peer that is gone is noticed after about half a minute. A server must allow
// pings at this interval, or gRPC closes the connection ("too_many_pings").
inline constexpr int kKeepAliveTimeMs = 20'000;
inline constexpr int kKeepAliveTimeoutMs = 10'000;
inline constexpr int kMinPingIntervalMs = 10'000;

// What a stream may have received that nobody has read yet: four slices, so that the sender goes on
// while one is decoded. The window is fixed, docs/adr/0005-fixed-stream-window.md says why.
inline constexpr int kStreamWindowBytes = 8 << 20;
inline constexpr int kMaxFrameBytes = 1 << 20;
// The pieces in which gRPC reads a socket; by itself it begins with 8 KiB.
inline constexpr int kMinReadBytes = 64 << 10;
inline constexpr int kReadBytes = 256 << 10;
inline constexpr int kMaxReadBytes = 4 << 20;

// Prepares the process for gRPC and its messages; NewChannel calls it, a server must too.
// Thread-safe, cheap when repeated.
//
// It keeps the library initialised until the process ends. Without it the last channel or server to
// go shuts the library down, which takes up to 10 s when a socket was being written (gRPC 1.51's
// backup poller). And it has malloc keep what is freed, up to 256 MiB in each of its arenas: gRPC
// allocates what it receives in megabytes, and to fault every page in anew costs more than to
// receive it.
void KeepGrpcInitialised();

// A channel of its own connection, with message limits, keep-alive and no gRPC compression.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address);

// The counterpart for a server: the same limits and keep-alive, a port of its own.
void SetServerOptions(grpc::ServerBuilder* builder);

// "HOST:PORT" with a port in 1…65535 (0 allowed if `allow_any_port`). InvalidArgument else.
absl::Status CheckAddress(absl::string_view address, bool allow_any_port);
// Whether the host part is a loopback address or "localhost".
bool IsLoopback(absl::string_view address);

}  // namespace eps

#endif  // EPS_WIRE_CHANNEL_H_
