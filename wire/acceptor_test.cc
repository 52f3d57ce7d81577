#include "wire/acceptor.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/descriptor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kPatience{300};

Descriptor NewSocket() { return Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kSettings("\0\0\6\4\0\0\0\0\0\0\2\0\0\0\0", 15);
const std::string kAck("\0\0\0\4\1\0\0\0\0", 9);
const std::string kCall("\0\0\0\1\4\0\0\0\1", 9);

TEST(AcknowledgesSettings, FindsTheFrame) {
  const std::string whole = kPreface + kSettings + kAck;
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(AcknowledgesSettings(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_EQ(AcknowledgesSettings(whole), true);
  EXPECT_EQ(AcknowledgesSettings("GET / HTTP/1.1"), false);
  EXPECT_EQ(AcknowledgesSettings(kPreface + std::string(5000, '\0') + kAck), false);
}

TEST(AcknowledgesSettings, LimitsEarlierCalls) {
  std::string bytes = kPreface + kSettings;
  for (int i = 0; i < kMaxStreamsPerConnection; ++i) bytes += kCall;
  EXPECT_EQ(AcknowledgesSettings(bytes + kAck), true);
  EXPECT_EQ(AcknowledgesSettings(bytes + kCall + kAck), false);
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

bool SendAll(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Takes connections as gRPC does: sends settings at once, unless it is slow, and closes them when
// the test says so.
class FakeServer final : public Acceptor::Connections {
 public:
  explicit FakeServer(std::atomic<int>* last, bool slow = false) : last_(last), slow_(slow) {}
  void HandleNewConnection(NewConnectionParameters* p) override {
    EXPECT_TRUE(slow_ || SendAll(p->fd, kSettings));
    last_->store(p->fd);
  }

 private:
  std::atomic<int>* const last_;
  const bool slow_;
};

Descriptor ConnectAndSend(int port, const std::string& greeting) {
  Descriptor fd = NewSocket();
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(port));
  const timeval timeout = {kPatience.count(), 0};
  EXPECT_EQ(setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  EXPECT_TRUE(SendAll(fd.get(), greeting));
  return fd;
}

// Connects, and sends what a client of HTTP/2 sends first.
Descriptor Connect(int port) { return ConnectAndSend(port, kPreface + kAck); }

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

// Sends as much as the kernel takes.
void Fill(const Descriptor& client) {
  const std::string bytes(64 << 10, 'x');
  while (send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
  }
}

bool IsReadable(int fd, std::chrono::milliseconds patience) {
  pollfd readable = {fd, POLLIN, 0};
  return poll(&readable, 1, static_cast<int>(patience.count())) > 0;
}

// Drops what the server sends. Returns whether it closes the connection.
bool IsClosed(const Descriptor& client) {
  char bytes[256];
  ssize_t got = 0;
  while ((got = recv(client.get(), bytes, sizeof(bytes), 0)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

TEST(AcceptorTest, HoldsBytesUntilTheServerWrites) {
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 10);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last, /*slow=*/true));
  const Descriptor client = Connect((*acceptor)->port());
  const Descriptor end(ServerEnd(client, &last));
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE(IsReadable(end.get(), std::chrono::milliseconds(0)));
  ASSERT_TRUE(SendAll(client.get(), std::string(2000, 'x')));
  EXPECT_FALSE(IsReadable(end.get(), std::chrono::milliseconds(0)));
  ASSERT_TRUE(SendAll(end.get(), kSettings));
  EXPECT_TRUE(IsReadable(end.get(), kPatience));
}

TEST(AcceptorTest, ExpelsClientsThatFillTheBuffer) {
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 10);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last, /*slow=*/true));
  const Descriptor hostile = Connect((*acceptor)->port());
  Descriptor end(ServerEnd(hostile, &last));
  ASSERT_TRUE(end.ok());
  Fill(hostile);
  ASSERT_TRUE(IsReadable(end.get(), kPatience)) << "the kernel cannot hold all of it";
  std::string bytes(1 << 20, '\0');
  ssize_t got = recv(end.get(), bytes.data(), bytes.size(), 0);
  EXPECT_GT(got, 0);
  EXPECT_LE(got, 48 << 10);
  // The client has sent more than that, so the server reads on until the acceptor intervenes.
  while (got > 0 && IsReadable(end.get(), kPatience)) {
    got = recv(end.get(), bytes.data(), bytes.size(), 0);
  }
  EXPECT_LE(got, 0);
  EXPECT_TRUE(IsClosed(hostile));

  // The next connection waits until the server has closed this one. The acceptor looks at
  // connections in their order, so it has seen the acknowledgement when it closes the last one.
  const Descriptor next = Connect((*acceptor)->port());
  const Descriptor no_client = ConnectAndSend((*acceptor)->port(), "GET / HTTP/1.1\r\n");
  EXPECT_TRUE(IsClosed(no_client));
  EXPECT_EQ(last.load(), -1);
  end = Descriptor();
  const Descriptor next_end(ServerEnd(next, &last));
  EXPECT_TRUE(next_end.ok());
}

TEST(AcceptorTest, RefusesClientsThatFillTheSocket) {
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 10);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  const Descriptor hostile = Connect((*acceptor)->port());
  Fill(hostile);
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last));
  EXPECT_TRUE(IsClosed(hostile));
  EXPECT_EQ(last.load(), -1);
}

TEST(AcceptorTest, ClosesWhatIsReadBeforeTheSettings) {
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 10);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  std::atomic<int> last{-1};
  (*acceptor)->Start(std::make_unique<FakeServer>(&last, /*slow=*/true));
  const Descriptor client = Connect((*acceptor)->port());
  const Descriptor end(ServerEnd(client, &last));
  ASSERT_TRUE(end.ok());
  std::string bytes(1000, '\0');
  EXPECT_GT(recv(end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT), 0);
  EXPECT_TRUE(IsClosed(client));
}

// Reads one message of each call and ends it.
class OneMessage final : public grpc::ServerGenericBidiReactor {
 public:
  OneMessage() { StartRead(&message_); }
  void OnReadDone(bool ok) override { Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer message_;
};

class OneMessageService final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new OneMessage();
  }
};

// Connects to a server and sends it one message.
absl::Status SendMessage(const std::string& address, size_t bytes) {
  const grpc::Slice slice(std::string(bytes, 'x'));
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(NewChannel(address));
  const auto call = stub.PrepareCall(&context, "/any", &queue);
  call->StartCall(nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  call->WriteLast(message, {}, nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return FromGrpc(status, "");
}

TEST(AcceptorTest, ServesLargeFirstMessages) {
  KeepGrpcInitialised();
  auto acceptor = Acceptor::Listen("127.0.0.1:0", 1000);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  OneMessageService service;
  grpc::ServerBuilder builder;
  SetServerOptions(&builder);
  builder.RegisterCallbackGenericService(&service);
  auto connections = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  (*acceptor)->Start(std::move(connections));
  const std::string address = "127.0.0.1:" + std::to_string((*acceptor)->port());
  // A client that is refused tries again, as all clients do.
  constexpr int kAttempts = 3;
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::async(std::launch::async, [&address] {
      for (int j = 0; j < 25; ++j) {
        absl::Status status = absl::UnavailableError("");
        for (int k = 0; k < kAttempts && absl::IsUnavailable(status); ++k) {
          status = SendMessage(address, 4 << 20);
        }
        EXPECT_TRUE(status.ok()) << status;
      }
    }));
  }
  for (std::future<void>& client : clients) client.get();
  (*acceptor)->Stop();
  server->Shutdown();
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
