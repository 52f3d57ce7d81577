#include "wire/acceptor.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/descriptor.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kPatience{20};

Descriptor NewSocket() { return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kSettings("\0\0\6\4\0\0\0\0\0\0\2\0\0\0\0", 15);
const std::string kAck("\0\0\0\4\1\0\0\0\0", 9);

TEST(AcknowledgesSettings, FindsTheFrame) {
  const std::string whole = kPreface + kSettings + kAck;
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(AcknowledgesSettings(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_EQ(AcknowledgesSettings(whole), true);
  EXPECT_EQ(AcknowledgesSettings("GET / HTTP/1.1"), false);
  EXPECT_EQ(AcknowledgesSettings(kPreface + std::string(5000, '\0') + kAck), false);
}

TEST(OpenSockets, CountsWhatIsStillOpen) {
  OpenSockets::Clock::time_point now;
  OpenSockets open(2);
  const Descriptor first = NewSocket();
  Descriptor second = NewSocket();
  const Descriptor third = NewSocket();
  EXPECT_TRUE(open.Add(first.get(), now));
  EXPECT_TRUE(open.Add(second.get(), now));
  EXPECT_FALSE(open.Add(third.get(), now));
  second = Descriptor();
  now += OpenSockets::kPause;
  EXPECT_TRUE(open.Add(third.get(), now));
  EXPECT_EQ(open.size(), 2u);
}

TEST(OpenSockets, NoticesAReusedNumber) {
  OpenSockets::Clock::time_point now;
  OpenSockets open(1);
  Descriptor socket = NewSocket();
  const int number = socket.get();
  EXPECT_TRUE(open.Add(number, now));
  socket = Descriptor();
  const Descriptor other = NewSocket();  // the lowest free number
  ASSERT_EQ(other.get(), number);
  const Descriptor next = NewSocket();
  now += OpenSockets::kPause;
  EXPECT_TRUE(open.Add(next.get(), now)) << "the first socket is gone";
}

// Takes connections as gRPC does: closes them when the test says so.
class FakeServer final : public Acceptor::Connections {
 public:
  explicit FakeServer(std::atomic<int>* last) : last_(last) {}
  void HandleNewConnection(NewConnectionParameters* p) override { last_->store(p->fd); }

 private:
  std::atomic<int>* const last_;
};

// Connects, and sends what a client of HTTP/2 sends first.
Descriptor Connect(int port) {
  Descriptor fd = NewSocket();
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(port));
  const timeval timeout = {kPatience.count(), 0};
  EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  const std::string greeting = kPreface + kAck;
  EXPECT_EQ(send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(greeting.size()));
  return fd;
}

// Returns the descriptor of the server's end, or -1 if the connection was refused.
int ServerEnd(const Descriptor& client, std::atomic<int>* last) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  char c = 0;
  while (std::chrono::steady_clock::now() < give_up) {
    const int fd = last->exchange(-1);
    if (fd >= 0) return fd;
    const ssize_t got = recv(client.get(), &c, 1, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return -1;
  }
  ADD_FAILURE() << "the connection was neither accepted nor refused";
  return -1;
}

TEST(AcceptorTest, LimitsOpenConnections) {
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 2);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last));
  const Descriptor first = Connect((*acceptor)->port());
  Descriptor first_end(ServerEnd(first, &last));
  EXPECT_TRUE(first_end.ok());
  const Descriptor second = Connect((*acceptor)->port());
  const Descriptor second_end(ServerEnd(second, &last));
  EXPECT_TRUE(second_end.ok());
  const Descriptor third = Connect((*acceptor)->port());
  EXPECT_EQ(ServerEnd(third, &last), -1);
  first_end = Descriptor();
  // A client that is refused tries again.
  Descriptor fourth_end;
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (!fourth_end.ok() && std::chrono::steady_clock::now() < give_up) {
    const Descriptor fourth = Connect((*acceptor)->port());
    fourth_end = Descriptor(ServerEnd(fourth, &last));
  }
  EXPECT_TRUE(fourth_end.ok());
}

TEST(AcceptorTest, ServesConnectionsThatCameBeforeStart) {
  auto acceptor = Acceptor::Listen("localhost:0", 10);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  const Descriptor early = Connect((*acceptor)->port());
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last));
  const Descriptor end(ServerEnd(early, &last));
  EXPECT_TRUE(end.ok());
  (*acceptor)->Stop();
  (*acceptor)->Stop();
}

TEST(AcceptorTest, SaysWhyItCannotListen) {
  const auto first = Acceptor::Listen("127.0.0.1:0", 10);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto taken = Acceptor::Listen("127.0.0.1:" + std::to_string((*first)->port()), 10);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(taken.status().message(), "Address already in use"))
      << taken.status();
  const auto foreign = Acceptor::Listen("192.0.2.1:0", 10);
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kUnavailable) << foreign.status();
}

}  // namespace
}  // namespace eps
