// A server's shared memory with workers that are processes of their own, over a real socket.

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/machine/shared_regions.h"
#include "gtest/gtest.h"
#include "wire/shm/shm_client.h"
#include "wire/shm/shm_server.h"
#include "wire/shm/shm_sessions.h"
#include "wire/shm/shm_socket.h"

namespace eps {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kWeights = 4 * kPage;
constexpr uint64_t kGradients = 2 * kPage;
constexpr uint64_t kLimit = 1 << 20;
constexpr std::chrono::seconds kPatience{30};
constexpr char kOneUser[] = "this process cannot become another user";

// Waits until `condition` is true. Returns whether that happened in time.
bool Await(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

// A process that runs `work` with its end of a socket to the test. It begins before the test has
// threads, and is killed with this object.
class Child {
 public:
  explicit Child(const std::function<void(int)>& work) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      work(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    channel_ = Descriptor(ends[0]);
  }
  ~Child() { Kill(); }

  void Send(const std::string& text) const {
    EXPECT_TRUE(SendPacket(channel_.get(), text.data(), text.size()).ok());
  }
  std::string Receive() const { return ReceiveFrom(channel_.get()); }
  static std::string ReceiveFrom(int channel) {
    char text[4096];
    std::vector<Descriptor> none;
    const auto size = ReceivePacket(channel, text, sizeof(text), &none);
    return size.ok() ? std::string(text, *size) : "";
  }
  void Signal(int signal) const { kill(pid_, signal); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  Descriptor channel_;
};

// A worker that maps the weights, says its session, reads the range that it is told, and says what
// it has read; then it gives the range back when it is told to.
void HoldWeights(int channel) {
  v1::SharedMemoryOffer offer;
  offer.ParseFromString(Child::ReceiveFrom(channel));
  auto weights = ShmWeights::Connect(offer);
  const std::string said =
      weights.ok() ? absl::StrCat((*weights)->session()) : std::string(weights.status().message());
  (void)SendPacket(channel, said.data(), said.size());
  if (!weights.ok()) return;
  v1::SharedRange range;
  range.ParseFromString(Child::ReceiveFrom(channel));
  absl::StatusOr<Bytes> bytes = (*weights)->Read(range);
  const std::string text = bytes.ok() ? std::string(bytes->view().data(), bytes->size()) : "error";
  (void)SendPacket(channel, text.data(), text.size());
  (void)Child::ReceiveFrom(channel);
  *bytes = Bytes();
  (void)SendPacket(channel, "done", 4);
  (void)Child::ReceiveFrom(channel);
}

class ShmTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/eps-shm-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    options_.folder = folder;
    options_.weights_bytes = kWeights;
    options_.gradients_bytes = kGradients;
    options_.incarnation = 7;
    options_.account = &account_;
    options_.needs = [this] { return needs_; };
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
    server_.reset();
    EXPECT_EQ(account_.live_bytes(), 0u);
    EXPECT_EQ(rmdir(options_.folder.c_str()), 0) << "the socket is left";
  }
  void Start() {
    auto server = ShmServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  Bytes Encoded(const std::string& text, uint64_t size = kPage) {
    Buffer buffer(size, MemoryKind::kFetch, &account_);
    std::memset(buffer.data(), 0, size);
    std::memcpy(buffer.data(), text.data(), text.size());
    return std::move(buffer).Freeze();
  }
  // Returns whether all of the segment of weights can be taken.
  bool AllFree() { return server_->Allocate(kWeights) != nullptr; }
  // Lets a child with HoldWeights hold a page, which nothing else holds afterwards.
  void Hold(const Child& child) {
    child.Send(server_->offer().SerializeAsString());
    const std::string session = child.Receive();
    const auto found = server_->Find(std::strtoull(session.c_str(), nullptr, 10));
    ASSERT_NE(found, nullptr) << session;
    v1::SharedRange range;
    ASSERT_TRUE(found->Hold(Encoded("weights"), &range));
    child.Send(range.SerializeAsString());
    EXPECT_TRUE(absl::StartsWith(child.Receive(), "weights"));
    EXPECT_FALSE(AllFree());
  }

  // Lets a process of another user connect.
  void RefuseAStranger();

  MemoryAccount account_{kLimit};
  ShmNeeds needs_{0, kWeights, kGradients};
  ShmOptions options_;
  std::unique_ptr<ShmServer> server_;
};

TEST_F(ShmTest, WeightsAreWrittenOnceAndGivenBack) {
  const Child worker(&HoldWeights);
  Start();
  EXPECT_EQ(server_->Allocate(1), nullptr) << "a segment without workers";
  Hold(worker);
  EXPECT_EQ(account_.live_bytes(MemoryKind::kFetch), kWeights + kShmHoldBytes);
  worker.Send("give it back");
  EXPECT_EQ(worker.Receive(), "done");
  EXPECT_TRUE(AllFree());
}

TEST_F(ShmTest, SilentWorkersKeepTheirRoom) {
  const Child worker(&HoldWeights);
  Start();
  Hold(worker);
  worker.Signal(SIGSTOP);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(AllFree());
  worker.Signal(SIGCONT);
  worker.Send("give it back");
  EXPECT_EQ(worker.Receive(), "done");
  EXPECT_TRUE(AllFree());
}

TEST_F(ShmTest, DeadWorkersGiveAllBack) {
  Child worker(&HoldWeights);
  Start();
  Hold(worker);
  worker.Kill();
  EXPECT_TRUE(Await([&] { return account_.live_bytes() == 0; })) << account_.live_bytes();
}

// A process that still reads has perhaps lost its socket: only its end counts.
TEST_F(ShmTest, ClosedSocketsKeepRoomOfLivingProcesses) {
  Child worker([](int channel) {
    v1::SharedMemoryOffer offer;
    offer.ParseFromString(Child::ReceiveFrom(channel));
    auto socket = ConnectToShmSocket(offer.socket(), kPatience);
    ShmHello hello;
    hello.nonce = offer.nonce();
    (void)SendPacket(socket->get(), &hello, sizeof(hello));
    ShmWelcome welcome;
    std::vector<Descriptor> segments;
    (void)ReceivePacket(socket->get(), &welcome, sizeof(welcome), &segments);
    *socket = Descriptor();
    const std::string session = absl::StrCat(welcome.session);
    (void)SendPacket(channel, session.data(), session.size());
    (void)Child::ReceiveFrom(channel);
  });
  Start();
  worker.Send(server_->offer().SerializeAsString());
  const uint64_t session = std::strtoull(worker.Receive().c_str(), nullptr, 10);
  ASSERT_NE(session, 0u);
  // The server handles this connection after the end of the first one.
  { ASSERT_TRUE(ShmWeights::Connect(server_->offer()).ok()); }
  EXPECT_NE(server_->Find(session), nullptr);
  worker.Kill();
  EXPECT_TRUE(Await([&] { return server_->Find(session) == nullptr; }));
}

TEST_F(ShmTest, GradientsAreFoundWhereTheyWerePut) {
  Start();
  auto gradients = ShmGradients::Connect(server_->offer());
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  const std::shared_ptr<uint8_t> memory = (*gradients)->Allocate(100);
  ASSERT_NE(memory, nullptr);
  std::memcpy(memory.get(), "gradient", 8);
  v1::SharedRange range;
  ASSERT_TRUE((*gradients)->Find(Bytes::Borrow({memory.get(), 100}, memory), &range));
  const auto session = server_->Find(range.session());
  ASSERT_NE(session, nullptr);
  const auto found = session->Gradients(range);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(std::memcmp(found->data(), "gradient", 8), 0);
  EXPECT_FALSE((*gradients)->Find(Bytes::CopyOf("elsewhere"), &range));
  EXPECT_EQ((*gradients)->Allocate(kGradients), nullptr);

  range.set_offset(kGradients - 99);
  EXPECT_EQ(session->Gradients(range).status().code(), absl::StatusCode::kInvalidArgument);
  range.set_offset(UINT64_MAX - 10);
  EXPECT_EQ(session->Gradients(range).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmTest, DevicesMayReadWeightsInPlace) {
  Start();
  auto weights = ShmWeights::Connect(server_->offer());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto session = server_->Find((*weights)->session());
  v1::SharedRange range;
  ASSERT_TRUE(session->Hold(Encoded("weights"), &range));
  auto bytes = (*weights)->Read(range);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  uint64_t registered = 0;
  SharedRegions::User device;
  device.attach = [&registered](absl::Span<const uint8_t> region, SharedRegions::Access access) {
    EXPECT_EQ(access, SharedRegions::Access::kRead);
    registered = region.size();
    return true;
  };
  device.detach = [&registered](absl::Span<const uint8_t>) { registered = 0; };
  EXPECT_TRUE(SharedRegions::Get().Attached({bytes->data(), bytes->size()}, device));
  EXPECT_EQ(registered, kWeights);
  *weights = nullptr;
  EXPECT_EQ(registered, kWeights) << "bytes are still there";
  bytes = Bytes();
  EXPECT_EQ(registered, 0u);
}

TEST_F(ShmTest, DevicesMayWriteGradientsInPlace) {
  Start();
  auto gradients = ShmGradients::Connect(server_->offer());
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  std::shared_ptr<uint8_t> room = (*gradients)->Allocate(100);
  ASSERT_NE(room, nullptr);
  bool registered = false;
  SharedRegions::User device;
  device.attach = [&registered](absl::Span<const uint8_t>, SharedRegions::Access access) {
    EXPECT_EQ(access, SharedRegions::Access::kWrite);
    return registered = true;
  };
  device.detach = [&registered](absl::Span<const uint8_t>) { registered = false; };
  EXPECT_TRUE(SharedRegions::Get().Attached({room.get(), 100}, device));
  *gradients = nullptr;
  EXPECT_TRUE(registered) << "the room is still there";
  room = nullptr;
  EXPECT_FALSE(registered);
}

TEST_F(ShmTest, RangesOfOthersAreRefused) {
  Start();
  auto weights = ShmWeights::Connect(server_->offer());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto session = server_->Find((*weights)->session());
  v1::SharedRange range;
  EXPECT_FALSE(session->Hold(Bytes::CopyOf("private memory"), &range));
  ASSERT_TRUE(session->Hold(Encoded("weights"), &range));
  EXPECT_EQ(session->Gradients(range).status().code(), absl::StatusCode::kInvalidArgument);
  range.set_session(range.session() + 1);
  EXPECT_EQ((*weights)->Read(range).status().code(), absl::StatusCode::kInvalidArgument);
  range.set_session((*weights)->session());
  range.set_offset(kWeights - kPage + 1);
  EXPECT_EQ((*weights)->Read(range).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmTest, FullSegmentsLeaveBytesToThePool) {
  Start();
  auto weights = ShmWeights::Connect(server_->offer());
  ASSERT_TRUE(weights.ok()) << weights.status();
  const uint64_t segments = account_.live_bytes();
  const Bytes large = Encoded("large", kWeights);
  EXPECT_EQ(account_.live_bytes(), segments) << "memory of the segment was charged twice";
  const Bytes more = Encoded("more");
  EXPECT_EQ(account_.live_bytes(), segments + kPage);
  v1::SharedRange range;
  EXPECT_FALSE(server_->Find((*weights)->session())->Hold(more, &range));
}

TEST_F(ShmTest, SegmentsAreNoLargerThanNeeded) {
  needs_ = {0, kPage + 1, kPage};
  Start();
  const auto weights = ShmWeights::Connect(server_->offer());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(account_.live_bytes(), 2 * kPage + kShmHoldBytes);
  const auto gradients = ShmGradients::Connect(server_->offer());
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  EXPECT_EQ(account_.live_bytes(MemoryKind::kContribution), kPage);
}

TEST_F(ShmTest, GradientsAreEncodedIntoTheSegment) {
  needs_.gradients = kPage;
  Start();
  const auto gradients = ShmGradients::Connect(server_->offer());
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  const auto encode = [](MemoryAccount* account) {
    Buffer buffer(kPage, MemoryKind::kStage, account);
    std::memset(buffer.data(), 7, kPage);
    return std::move(buffer).Freeze();
  };
  const Bytes first = (*gradients)->Encode(encode);
  const Bytes second = (*gradients)->Encode(encode);  // there is no room
  v1::SharedRange range;
  EXPECT_TRUE((*gradients)->Find(first, &range));
  EXPECT_EQ(range.bytes(), kPage);
  EXPECT_FALSE((*gradients)->Find(second, &range));
  EXPECT_EQ(second.view(), first.view());
}

TEST_F(ShmTest, SegmentsTakeNoMemoryFromTheJob) {
  needs_.reserved = kLimit - kWeights + 1;
  Start();
  const auto refused = ShmWeights::Connect(server_->offer());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "servers.memory_limit"))
      << refused.status();
  EXPECT_TRUE(ShmGradients::Connect(server_->offer()).ok());  // it is smaller
}

TEST_F(ShmTest, OffersOfOthersAreRefused) {
  Start();
  v1::SharedMemoryOffer offer = server_->offer();
  offer.set_nonce(offer.nonce() + 1);
  EXPECT_TRUE(absl::StrContains(ShmWeights::Connect(offer).status().message(), "nonce"));
  offer = server_->offer();
  offer.set_boot_id("another machine");
  EXPECT_EQ(ShmWeights::Connect(offer).status().code(), absl::StatusCode::kFailedPrecondition);
  offer = server_->offer();
  offer.set_socket(offer.socket() + "x");
  EXPECT_EQ(ShmWeights::Connect(offer).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(chmod(options_.folder.c_str(), 0755), 0);
  EXPECT_EQ(ShmWeights::Connect(server_->offer()).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ShmServer::Start(options_).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ShmTest, PeersOfOtherUsersAreRefused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const Descriptor one(ends[0]);
  const Descriptor other(ends[1]);
  const absl::StatusOr<pid_t> own = PeerProcess(one.get(), geteuid());
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(*own, getpid());
  EXPECT_EQ(PeerProcess(one.get(), geteuid() + 1).status().code(),
            absl::StatusCode::kPermissionDenied);
  if (geteuid() == 0) RefuseAStranger();  // only root can become another user
}

void ShmTest::RefuseAStranger() {
  const Child stranger([](int channel) {
    v1::SharedMemoryOffer offer;
    offer.ParseFromString(Child::ReceiveFrom(channel));
    if (setuid(65534) != 0) {
      (void)SendPacket(channel, kOneUser, sizeof(kOneUser) - 1);
      return;
    }
    const Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, offer.socket().c_str(), sizeof(address.sun_path) - 1);
    ShmHello hello;
    hello.nonce = offer.nonce();
    const bool connected =
        connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    (void)SendPacket(connection.get(), &hello, sizeof(hello));
    ShmWelcome welcome;
    std::vector<Descriptor> segments;
    const auto size = ReceivePacket(connection.get(), &welcome, sizeof(welcome), &segments);
    const std::string said = absl::StrCat(connected ? "connected" : "not connected", ", ",
                                          size.ok() ? *size : 0, " bytes");
    (void)SendPacket(channel, said.data(), said.size());
  });
  Start();
  // Opens what else would stop the other user.
  ASSERT_EQ(chmod(options_.folder.c_str(), 0755), 0);
  ASSERT_EQ(chmod(server_->offer().socket().c_str(), 0777), 0);
  stranger.Send(server_->offer().SerializeAsString());
  const std::string said = stranger.Receive();
  // Bazel's sandbox has no other user; there only the check above of PeerProcess remains.
  if (said == kOneUser) std::cout << "not tried: " << said << std::endl;
  EXPECT_TRUE(said == "connected, 0 bytes" || said == kOneUser) << said;
}

TEST_F(ShmTest, SocketsOfKilledServersAreRemoved) {
  Child killed([this](int channel) {
    options_.incarnation = 3;
    const auto server = ShmServer::Start(options_);
    (void)SendPacket(channel, "up", 2);
    (void)Child::ReceiveFrom(channel);
  });
  ASSERT_EQ(killed.Receive(), "up");
  killed.Kill();
  const std::string left = options_.folder + "/0000000000000003.sock";
  ASSERT_EQ(access(left.c_str(), F_OK), 0);
  Start();
  EXPECT_NE(access(left.c_str(), F_OK), 0);
  EXPECT_TRUE(ShmWeights::Connect(server_->offer()).ok());
}

}  // namespace
}  // namespace eps
