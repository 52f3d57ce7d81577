#include "eps_server/rpc/testing/raw_connection.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>

#include "base/check.h"

namespace eps {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kResetStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kGoAway = 7;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint32_t kInitialWindowSize = 4;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr uint8_t kAckFlag = 1;
constexpr int kSendTimeoutSeconds = 10;
constexpr size_t kHeadBytes = 9;
constexpr size_t kDataBytes = 16 << 10;

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

std::string RawConnection::NextCall(const std::string& method) {
  // :method POST and :scheme http are in the static table; the other fields are literals.
  const std::string fields = "\x83\x86\x04" + Text(method) + "\x01" + Text("localhost") +
                             "\x0f\x10" + Text("application/grpc") + std::string(1, '\0') +
                             Text("te") + Text("trailers");
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  return Frame(kHeaders, kEndHeaders, stream, fields);
}

bool RawConnection::BeginCall(const std::string& method) { return Send(NextCall(method)); }

void RawConnection::BeginCalls(int calls, const std::string& method) {
  std::string frames;
  for (int i = 0; i < calls; ++i) frames += NextCall(method);
  send(fd_.get(), frames.data(), frames.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool RawConnection::BeginCallWith(const std::string& method, const std::string& message) {
  std::string framed(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0})
    framed.push_back(static_cast<char>(message.size() >> shift));
  const uint32_t stream = next_stream_;
  return BeginCall(method) && Send(Frame(kData, kEndStream, stream, framed + message));
}

bool RawConnection::SendPart(const std::string& method, size_t size, size_t bytes,
                             std::chrono::milliseconds patience) {
  const uint32_t stream = next_stream_;
  if (!BeginCall(method)) return false;
  std::string left(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0}) left.push_back(static_cast<char>(size >> shift));
  left.resize(left.size() + bytes);
  while (!left.empty()) {
    const int64_t window = std::min(connection_window_, call_window_);
    if (window <= 0) {
      if (!ReadFrame(patience)) return false;
      continue;
    }
    const size_t part = std::min({left.size(), static_cast<size_t>(window), kDataBytes});
    if (!Send(Frame(kData, 0, stream, left.substr(0, part)))) return false;
    left.erase(0, part);
    connection_window_ -= static_cast<int64_t>(part);
    call_window_ -= static_cast<int64_t>(part);
  }
  return true;
}

bool RawConnection::ReadFrame(std::chrono::milliseconds patience) {
  const auto receive = [&](size_t bytes) {
    pollfd poll_fd{fd_.get(), POLLIN, 0};
    std::string text(bytes, '\0');
    const bool came =
        poll(&poll_fd, 1, static_cast<int>(patience.count())) > 0 &&
        recv(fd_.get(), text.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
    return came ? text : std::string();
  };
  const auto number = [](const std::string& text, size_t at, size_t bytes) {
    uint32_t value = 0;
    for (size_t i = at; i < at + bytes; ++i) value = value << 8 | static_cast<uint8_t>(text[i]);
    return value;
  };
  const std::string head = receive(kHeadBytes);
  if (head.empty()) return false;
  const size_t size = number(head, 0, 3);
  const std::string payload = size == 0 ? "" : receive(size);
  if (payload.size() != size) return false;
  const auto type = static_cast<uint8_t>(head[3]);
  if (type == kWindowUpdate) {
    const bool whole = number(head, 5, 4) == 0;
    (whole ? connection_window_ : call_window_) += number(payload, 0, 4);
  } else if (type == kSettings && (head[4] & kAckFlag) == 0) {
    for (size_t at = 0; at < size; at += 6) {
      if (number(payload, at, 2) != kInitialWindowSize) continue;
      const int64_t window = number(payload, at + 2, 4);
      call_window_ += window - initial_window_;
      initial_window_ = window;
    }
    return Send(Frame(kSettings, kAckFlag, 0, ""));
  }
  return type != kResetStream && type != kGoAway;
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
