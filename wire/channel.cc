#include "wire/channel.h"

#include <arpa/inet.h>
#include <malloc.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "wire/security/identity.h"

namespace eps {
namespace {

constexpr uint32_t kMaxPort = 65535;

// glibc's largest mmap threshold, the growth step of its heaps, and what a heap may retain.
constexpr int kMmapThresholdBytes = 32 << 20;
constexpr int kHeapPadBytes = 64 << 20;
constexpr int kTrimThresholdBytes = 256 << 20;

// Payloads are already encoded. gRPC limits the size of a message before it inflates it, so a
// compressed message is refused by its header.
constexpr int kAcceptedCompression = 1 << GRPC_COMPRESS_NONE;

// Set on clients and servers alike, because both receive.
struct IntArgument {
  const char* name;
  int value;
};
constexpr IntArgument kReceiving[] = {
    {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, kAcceptedCompression},
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes},
    {GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadBytes},
    {GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, kMinReadBytes},
    {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadBytes},
};

// Returns the host part without brackets, or empty if there is no ":PORT".
absl::string_view HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return absl::string_view();
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return host;
}

bool ParseIpv4(absl::string_view host, in_addr* out) {
  return inet_pton(AF_INET, std::string(host).c_str(), out) == 1;
}

bool ParseIpv6(absl::string_view host, in6_addr* out) {
  return inet_pton(AF_INET6, std::string(host).c_str(), out) == 1;
}

absl::Status BadAddress(absl::string_view address, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is no address: ", why,
                                                 "; expected HOST:PORT, for example "
                                                 "127.0.0.1:50051, node-3:50051 or [::1]:50051"));
}

absl::Status CheckHost(absl::string_view address, absl::string_view host) {
  if (host.empty()) return BadAddress(address, "the host is empty");
  if (address.front() == '[') {
    in6_addr ignored;
    if (address[host.size() + 1] != ']' || !ParseIpv6(host, &ignored)) {
      return BadAddress(address, "the brackets do not hold an IPv6 address");
    }
    return absl::OkStatus();
  }
  for (const char c : host) {
    if (c == ':') return BadAddress(address, "an IPv6 address needs brackets");
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    if (!allowed) return BadAddress(address, "the host contains a character that no name may have");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAddress(absl::string_view address, bool allow_any_port) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(address, "it has no port");
  const absl::string_view port_text = address.substr(colon + 1);
  // SimpleAtoi alone would accept signs and spaces.
  bool digits = !port_text.empty() && port_text.size() <= 5;
  for (const char c : port_text) digits = digits && c >= '0' && c <= '9';
  uint32_t port = 0;
  if (!digits || !absl::SimpleAtoi(port_text, &port) || port > kMaxPort) {
    return BadAddress(address, "the port is not a number up to 65535");
  }
  if (port == 0 && !allow_any_port) return BadAddress(address, "port 0 cannot be connected to");
  return CheckHost(address, HostOf(address));
}

bool IsLoopback(absl::string_view address) {
  const absl::string_view host = HostOf(address);
  if (host == "localhost") return true;
  in_addr v4;
  if (ParseIpv4(host, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return ParseIpv6(host, &v6) && IN6_IS_ADDR_LOOPBACK(&v6);
}

void KeepGrpcInitialised() {
  static const bool once = [] {
    mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
    mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
    mallopt(M_TOP_PAD, kHeapPadBytes);
    grpc_init();
    return true;
  }();
  (void)once;
}

bool UsesTls(absl::string_view address) {
  const Identity* const identity = ProcessIdentityOrNull();
  return identity != nullptr && (identity->on_loopback() || !IsLoopback(address));
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  KeepGrpcInitialised();
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxControlMessageBytes);
  args.SetMaxSendMessageSize(kMaxControlMessageBytes);
  args.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  // One TCP connection carries about 1 GB/s, so channels must not share one.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  for (const IntArgument& argument : kReceiving) args.SetInt(argument.name, argument.value);
  // The caller retries by identity.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // The operator names the servers; never go through a web proxy.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // also the connect timeout
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(
      address,
      UsesTls(address) ? ProcessIdentityOrNull()->ForClients() : grpc::InsecureChannelCredentials(),
      args);
}

void SetServerOptions(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxControlMessageBytes);
  builder->SetMaxSendMessageSize(kMaxControlMessageBytes);
  builder->SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  for (const IntArgument& argument : kReceiving) {
    builder->AddChannelArgument(argument.name, argument.value);
  }
  // Otherwise a second server on the port would start too and receive half of the calls.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

void SetConnectionAge(uint64_t age_ms, grpc::ServerBuilder* builder) {
  if (age_ms == 0) return;
  constexpr uint64_t kGraceShare = 100;
  constexpr uint64_t kMinGraceMs = 1000;
  const auto argument = [](uint64_t ms) {
    return static_cast<int>(std::min<uint64_t>(ms, std::numeric_limits<int>::max()));
  };
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, argument(age_ms));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              argument(std::max(age_ms / kGraceShare, kMinGraceMs)));
}

}  // namespace eps
