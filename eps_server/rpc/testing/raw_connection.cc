#include "eps_server/rpc/testing/raw_connection.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/check.h"

namespace eps {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr uint8_t kAckFlag = 1;
constexpr int kSendTimeoutSeconds = 10;

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}

// A string of HPACK of at most 126 bytes.
std::string Text(const std::string& text) {
  return std::string(1, static_cast<char>(text.size())) + text;
}

}  // namespace

RawConnection::RawConnection(const std::string& address, Ack ack)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EPS_CHECK(fd_.ok());
  const timeval timeout = {kSendTimeoutSeconds, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (connect(fd_.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)) != 0) return;
  Send(kPreface + Frame(kSettings, 0, 0, ""));
  pollfd poll_fd{fd_.get(), POLLIN, 0};
  if (ack == Ack::kOnTime) poll(&poll_fd, 1, kSendTimeoutSeconds * 1000);
  if (ack != Ack::kNever) Send(Frame(kSettings, kAckFlag, 0, ""));
}

bool RawConnection::Send(const std::string& bytes) {
  return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

bool RawConnection::BeginCall(const std::string& method) {
  // :method POST and :scheme http are in the static table; the other fields are literals.
  const std::string fields = "\x83\x86\x04" + Text(method) + "\x01" + Text("localhost") +
                             "\x0f\x10" + Text("application/grpc") + std::string(1, '\0') +
                             Text("te") + Text("trailers");
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  return Send(Frame(kHeaders, kEndHeaders, stream, fields));
}

bool RawConnection::BeginCallWith(const std::string& method, const std::string& message) {
  std::string framed(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0})
    framed.push_back(static_cast<char>(message.size() >> shift));
  const uint32_t stream = next_stream_;
  return BeginCall(method) && Send(Frame(kData, kEndStream, stream, framed + message));
}

bool RawConnection::IsClosedWithin(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::string buffer(64 << 10, '\0');
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{fd_.get(), POLLIN, 0};
    if (left.count() <= 0 || poll(&poll_fd, 1, static_cast<int>(left.count())) <= 0) return false;
    if (recv(fd_.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
  }
}

}  // namespace eps
