// Many connections, streams and calls of a stranger, and messages in the name of others. Each test
// measures the memory of a real server process, and how long the steps of an honest worker take
// meanwhile. All of its steps must succeed; times are printed only.

#include <dirent.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/descriptor.h"
#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/honest_worker.h"
#include "eps_server/rpc/testing/raw_connection.h"
#include "eps_server/rpc/testing/serve_process.h"
#include "eps_server/rpc/testing/test_client.h"
#include "eps_server/shell/job_shell.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr uint64_t kAllowedGrowth = 64 * kMebibyte;
constexpr std::chrono::seconds kPatience{300};

JobSpec LongJob() {
  JobSpec spec = TinySyntheticSpec();
  spec.training.steps = 1'000'000;
  return spec;
}

// Servers with a job, and an honest worker that has done some steps.
class HostilePeers : public ::testing::Test {
 protected:
  explicit HostilePeers(int servers = 1) {
    std::vector<std::string> addresses;
    for (int i = 0; i < servers; ++i) {
      servers_.push_back(std::make_unique<ServeProcess>("127.0.0.1:0"));
      addresses.push_back(servers_.back()->Address());
    }
    address_ = addresses[0];
    worker_ = std::make_unique<HonestWorker>(addresses, spec_);
    for (int i = 0; i < 5; ++i) usual_ = std::max(usual_, StepSeconds());
    lead().ResetPeak();
    before_ = lead().ResidentBytes();
  }

  ServeProcess& lead() { return *servers_[0]; }
  TestClient& stranger() { return worker_->client(0); }

  double StepSeconds() {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = worker_->Step();
    EXPECT_TRUE(status.ok()) << status;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Runs `attack` on a thread and steps meanwhile, at least once after it. Then checks the peak of
  // the memory and prints the figures.
  void Survive(const char* name, const std::function<void()>& attack,
               uint64_t allowed = kAllowedGrowth) {
    std::future<void> ends = std::async(std::launch::async, attack);
    double slowest = 0;
    int steps = 0;
    while (ends.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      slowest = std::max(slowest, StepSeconds());
      ++steps;
      if (HasFailure()) break;
    }
    ends.get();
    slowest = std::max(slowest, StepSeconds());
    const uint64_t peak = lead().PeakBytes();
    std::printf(
        "%s: resident %llu MiB, peak %llu MiB; %d steps meanwhile, slowest %.3f s, before "
        "%.3f s\n",
        name, static_cast<unsigned long long>(before_ / kMebibyte),
        static_cast<unsigned long long>(peak / kMebibyte), steps, slowest, usual_);
    EXPECT_LT(peak, before_ + allowed);
  }

  const JobSpec spec_ = LongJob();
  std::vector<std::unique_ptr<ServeProcess>> servers_;
  std::string address_;
  std::unique_ptr<HonestWorker> worker_;
  double usual_ = 0;  // the slowest step before the attack, in seconds
  uint64_t before_ = 0;
};

class HostilePeersOfTwo : public HostilePeers {
 protected:
  HostilePeersOfTwo() : HostilePeers(2) {}
};

TEST_F(HostilePeersOfTwo, ForgedRegistersEndNoLink) {
  constexpr int kRegisters = 1000;
  Survive("1,000 forged Registers", [this] {
    v1::ShardMessage message;
    message.set_job_id(spec_.id().value());
    message.set_from(1);
    message.set_term(1);
    for (int i = 0; i < kRegisters; ++i) {
      message.mutable_register_()->set_incarnation(static_cast<uint64_t>(i));
      auto context = NewContext();
      auto link = stranger().shard().Link(context.get());
      link->Write(message);
      v1::ShardMessage ignored;
      while (link->Read(&ignored)) {
      }
      const absl::Status status = FromGrpc(link->Finish(), "");
      ASSERT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  });
}

// The honest worker has no lease, so any generation that a shard believes fences it out.
TEST_F(HostilePeersOfTwo, AStrangerFencesNobodyOut) {
  constexpr int kCalls = 100;
  Survive("leases that nobody granted", [this] {
    v1::BeginStepRequest begin;
    begin.set_job_id(spec_.id().value());
    begin.set_term(1);
    for (uint32_t part = 0; part < spec_.training.parts; ++part) {
      begin.add_parts(part);
      begin.add_generations(uint64_t{1} << 63);
    }
    v1::FetchRequest fetch;
    fetch.set_job_id(spec_.id().value());
    fetch.set_term(1);
    fetch.set_generation(uint64_t{1} << 63);
    for (int i = 0; i < kCalls; ++i) {
      TestClient& stranger = worker_->client(static_cast<size_t>(i % 2));
      begin.set_probe(i % 4 < 2);
      v1::BeginStepReply reply;
      // A shard that is not the lead waits for the lead's word.
      const auto context = NewContext(std::chrono::milliseconds(20));
      EXPECT_FALSE(stranger.data().BeginStep(context.get(), begin, &reply).ok());
      const auto fetching = NewContext();
      auto stream = stranger.data().Fetch(fetching.get());
      stream->Write(fetch);
      v1::FetchSlice slice;
      EXPECT_TRUE(stream->Read(&slice));
      EXPECT_EQ(slice.code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
      fetching->TryCancel();
      stream->Finish();
    }
  });
}

// Begins calls until the server closes the connection.
void BeginCalls(int calls, const std::string& method, RawConnection* connection) {
  for (int i = 0; i < calls; ++i) {
    if (!connection->BeginCall(method)) return;
  }
}

TEST_F(HostilePeers, StreamsOfAConnectionAreLimited) {
  RawConnection connection(address_, RawConnection::Ack::kOnTime);
  Survive("10,000 streams on one connection", [&] {
    BeginCalls(kMaxStreamsPerConnection, "/eps.v1.Data/Push", &connection);
    ASSERT_TRUE(stranger().WaitForStatus([](const v1::StatusReply& s) {
      return s.counters().at("streams_open") >= static_cast<uint64_t>(kMaxStreamsPerConnection);
    }));
    BeginCalls(10'000, "/eps.v1.Data/Push", &connection);
    EXPECT_TRUE(connection.IsClosedWithin(kPatience)) << "one stream too many ends the connection";
  });
}

// gRPC applies the limit of a connection only once its client has acknowledged the settings.
TEST_F(HostilePeers, SettingsAreAcknowledgedFirst) {
  for (const char* method : {"/eps.v1.Data/Push", "/eps.v1.Control/Hello"}) {
    RawConnection never(address_, RawConnection::Ack::kNever);
    Survive(method, [&] { BeginCalls(30'000, method, &never); });
    EXPECT_TRUE(never.IsClosedWithin(kPatience));
  }
  // An acknowledgement before the settings counts as well.
  std::vector<std::unique_ptr<RawConnection>> early;
  Survive("1,000 streams on each of 20 connections", [&] {
    for (int i = 0; i < 20; ++i) {
      early.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kEarly));
      BeginCalls(1'000, "/eps.v1.Control/Hello", early.back().get());
    }
  });
  for (const auto& connection : early) EXPECT_TRUE(connection->IsClosedWithin(kPatience));
}

// These clients acknowledge settings that they have not seen, and fill the kernel's buffer with
// calls while the server stands still: before it accepts the connection, or at any moment after.
// If gRPC reads too early, it takes up to 256 KiB at once, about 4,500 calls of 15 KiB.
TEST_F(HostilePeers, EarlyFloodsAreHarmless) {
  constexpr char kHello[] = "/eps.v1.Control/Hello";
  constexpr int kThreads = 4;
  constexpr uint64_t kAllowed = 2 * kAllowedGrowth;
  const auto flood_before_accept = [&] {
    std::vector<std::unique_ptr<RawConnection>> early;
    lead().Signal(SIGSTOP);
    for (int i = 0; i < 24; ++i) {
      early.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kEarly));
      early.back()->BeginCalls(20'000, kHello);
    }
    lead().Signal(SIGCONT);
    for (const auto& connection : early) EXPECT_TRUE(connection->IsClosedWithin(kPatience));
  };
  Survive("20,000 early calls on each of 24 waiting connections", flood_before_accept, kAllowed);
  const auto flood_at_any_moment = [&] {
    std::vector<std::future<void>> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.push_back(std::async(std::launch::async, [this, &kHello] {
        for (int j = 0; j < 25; ++j) {
          RawConnection connection(address_, RawConnection::Ack::kEarly);
          lead().Signal(SIGSTOP);
          connection.BeginCalls(60'000, kHello);
          lead().Signal(SIGCONT);
          EXPECT_TRUE(connection.IsClosedWithin(kPatience));
        }
      }));
    }
    // New connections of others are served meanwhile. Rarely, one must be made again (acceptor.h).
    for (int i = 0; i < 20; ++i) {
      v1::StatusReply reply;
      absl::Status status = TestClient(address_).Status(&reply);
      for (int again = 0; again < 2 && absl::IsUnavailable(status); ++again) {
        status = TestClient(address_).Status(&reply);
      }
      EXPECT_TRUE(status.ok()) << status;
    }
  };
  Survive("60,000 early calls on each of 100 connections, 4 at a time", flood_at_any_moment,
          kAllowed);
}

// Each of these messages lacks its last byte. The server has a quota of 256 MiB for what it has
// received.
TEST_F(HostilePeers, UnfinishedMessagesAreLimited) {
  static constexpr int kThreads = 8;
  static constexpr int kConnectionsPerThread = 5;
  constexpr size_t kSize = 16 * kMebibyte;
  static constexpr std::chrono::milliseconds kStalled{2'000};
  std::vector<std::unique_ptr<RawConnection>> connections;
  for (int i = 0; i < kThreads * kConnectionsPerThread; ++i) {
    connections.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kOnTime));
  }
  {
    std::vector<std::future<void>> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.push_back(std::async(std::launch::async, [&connections, t] {
        for (int i = 0; i < kConnectionsPerThread; ++i) {
          RawConnection& connection = *connections[static_cast<size_t>(kThreads * i + t)];
          connection.SendPart("/eps.v1.Control/Hello", kSize, kSize - 1, kStalled);
        }
      }));
    }
  }
  const uint64_t peak = lead().PeakBytes();
  EXPECT_GT(peak, before_ + 3 * kAllowedGrowth) << "the messages do not reach the quota";
  EXPECT_LT(peak, before_ + 5 * kAllowedGrowth);
  std::printf(
      "640 MiB of unfinished messages on 40 connections: resident %llu MiB, peak %llu MiB\n",
      static_cast<unsigned long long>(before_ / kMebibyte),
      static_cast<unsigned long long>(peak / kMebibyte));
  // Until then, the calls of others may end with RESOURCE_EXHAUSTED, too (SECURITY.md).
  connections.clear();
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  v1::StatusReply reply;
  while (!TestClient(address_).Status(&reply).ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up) << "the memory is not free again";
  }
}

TEST_F(HostilePeers, AThousandConnectionsAreHarmless) {
  constexpr int kConnections = 1000;
  std::vector<std::unique_ptr<RawConnection>> connections;
  const auto connect = [&] {
    for (int i = 0; i < kConnections; ++i) {
      connections.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kOnTime));
      EXPECT_TRUE(connections.back()->BeginCall("/eps.v1.Data/Push"));
    }
  };
  Survive("1,000 connections with a stream each", connect, 2 * kAllowedGrowth);
  EXPECT_TRUE(stranger().WaitForStatus([](const v1::StatusReply& s) {
    return s.counters().at("streams_open") >= static_cast<uint64_t>(kConnections);
  }));
}

TEST_F(HostilePeers, CallsOfAJobAreLimited) {
  constexpr int kConnections = static_cast<int>(JobShell::kMaxStreams) / kMaxStreamsPerConnection;
  {
    std::vector<std::unique_ptr<RawConnection>> connections;
    for (int i = 0; i < kConnections; ++i) {
      connections.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kOnTime));
      BeginCalls(kMaxStreamsPerConnection, "/eps.v1.Data/Push", connections.back().get());
    }
    ASSERT_TRUE(stranger().WaitForStatus([](const v1::StatusReply& s) {
      return s.counters().at("streams_open") >= JobShell::kMaxStreams;
    }));
    const absl::Status refused = stranger().BeginStep(spec_, 1);
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "has 8192 open calls")) << refused;
  }
  ASSERT_TRUE(stranger().WaitForStatus([](const v1::StatusReply& s) {
    return s.counters().at("streams_open") < JobShell::kMaxStreams;
  }));
  Survive(
      "8,192 calls of a job", [] {}, 4 * kAllowedGrowth);
}

// Returns the number of files that the process has open.
int OpenFiles(pid_t pid) {
  DIR* folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str());
  if (folder == nullptr) return -1;
  int entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - 2;  // "." and ".."
}

TEST_F(HostilePeers, AServerOutOfFilesListensOn) {
  const pid_t pid = lead().pid();
  rlimit files = {};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &files), 0);
  files.rlim_cur = static_cast<rlim_t>(OpenFiles(pid)) + 20;
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &files, nullptr), 0);
  Survive("connections until no file can be opened", [&] {
    std::vector<std::unique_ptr<RawConnection>> connections;
    for (int i = 0; i < 60; ++i) {
      connections.push_back(std::make_unique<RawConnection>(address_, RawConnection::Ack::kNever));
    }
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (OpenFiles(pid) < static_cast<int>(files.rlim_cur)) {
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << OpenFiles(pid) << " files are open";
    }
  });
  v1::StatusReply reply;
  const absl::Status status = TestClient(address_).Status(&reply);
  EXPECT_TRUE(status.ok()) << "a new connection: " << status;
}

TEST_F(HostilePeers, UnreadRecordsEndTheWatch) {
  constexpr int kWatches = 8;
  constexpr uint64_t kMostSteps = 20'000;
  v1::WatchStepsRequest request;
  request.set_job_id(spec_.id().value());
  RawConnection connection(address_, RawConnection::Ack::kOnTime);
  for (int i = 0; i < kWatches; ++i) {
    ASSERT_TRUE(
        connection.BeginCallWith("/eps.v1.Control/WatchSteps", request.SerializeAsString()));
  }
  ASSERT_TRUE(stranger().WaitForStatus([](const v1::StatusReply& s) {
    return s.counters().at("streams_open") >= static_cast<uint64_t>(kWatches);
  }));
  // The worker has streams of its own only while a step runs.
  uint64_t open = kWatches;
  while (open > 0 && !HasFailure()) {
    for (int i = 0; i < 50; ++i) usual_ = std::max(usual_, StepSeconds());
    open = stranger().Counter("streams_open");
    ASSERT_LT(worker_->steps_done(), kMostSteps) << open << " watches are open";
  }
  std::printf("the watches end after %llu steps\n",
              static_cast<unsigned long long>(worker_->steps_done()));
  Survive("8 watches that nobody reads", [] {});
}

TEST_F(HostilePeers, InitializesRunOneAtATime) {
  // The job of the fixture has its weights; this server still waits for them.
  ServeProcess server("127.0.0.1:0");
  const std::string address = server.Address();
  TestClient stranger(address);
  const JobSpec spec = BigChunkSpec();
  ASSERT_TRUE(stranger.CreateJob(spec, {address}).ok());
  const uint64_t before = server.ResidentBytes();
  server.ResetPeak();
  constexpr int kMessages = 100'000;
  auto context = NewContext();
  v1::ImportStateReply reply;
  auto stream = stranger.control().ImportState(context.get(), &reply);
  v1::ImportStateRequest request;
  request.set_initialize(true);
  for (int i = 0; i < kMessages && stream->Write(request); ++i) {
  }
  stream->WritesDone();
  absl::Status status = FromGrpc(stream->Finish(), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "initialize was sent before")) << status;

  // Many streams, each of which initializes and goes away.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::ImportStateRequest>>> streams;
  for (int i = 0; i < 500; ++i) {
    contexts.push_back(NewContext());
    streams.push_back(stranger.control().ImportState(contexts.back().get(), &reply));
    streams.back()->Write(request);
    if (i % 10 == 9) contexts.back()->TryCancel();
    if (i >= 10) contexts[static_cast<size_t>(i) - 10]->TryCancel();
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    contexts[i]->TryCancel();
    streams[i]->Finish();
  }
  const uint64_t peak = server.PeakBytes();
  std::printf("100,500 initializations: resident %llu MiB, peak %llu MiB\n",
              static_cast<unsigned long long>(before / kMebibyte),
              static_cast<unsigned long long>(peak / kMebibyte));
  EXPECT_LT(peak, before + kAllowedGrowth);
  // The honest initialization may find one that still runs.
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  do {
    status = stranger.Initialize(spec);
  } while (absl::IsUnavailable(status) && std::chrono::steady_clock::now() < give_up);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(HostilePeers, ManyStatusCallsAreHarmless) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 5000;
  Survive("20,000 Status calls on 4 connections", [this] {
    std::vector<std::future<void>> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.push_back(std::async(std::launch::async, [this] {
        TestClient client(address_);
        v1::StatusReply reply;
        for (int call = 0; call < kCalls; ++call) {
          const absl::Status status = client.Status(&reply);
          ASSERT_TRUE(status.ok()) << status;
        }
      }));
    }
  });
}

// A listening socket of a stranger.
class RawListener {
 public:
  RawListener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(where);
    auto* const address = reinterpret_cast<sockaddr*>(&where);
    EPS_CHECK(bind(fd_.get(), address, size) == 0 && listen(fd_.get(), 8) == 0 &&
              getsockname(fd_.get(), address, &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(where.sin_port));
  }
  const std::string& address() const { return address_; }
  // Returns whether somebody has connected since the last call.
  bool WasCalled() { return Descriptor(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)).ok(); }

 private:
  const Descriptor fd_;
  std::string address_;
};

TEST(HostilePrepareTest, ConnectsToNoAddressOfAStranger) {
  // The stranger listens, and would see a connection.
  RawListener listener;
  ServeProcess server("127.0.0.1:0", {"127.0.0.1:9"});
  const std::string address = server.Address();
  TestClient stranger(address);
  v1::PrepareJobRequest request;
  request.set_spec_text(TinySyntheticSpec().ToText());
  request.add_servers(listener.address());
  request.add_servers(address);
  request.set_shard(1);
  request.set_term(1);
  v1::PrepareJobReply reply;
  for (int i = 0; i < 1000; ++i) {
    const absl::Status status =
        FromGrpc(stranger.shard().PrepareJob(NewContext().get(), request, &reply), "");
    ASSERT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  }
  EXPECT_FALSE(listener.WasCalled());
  const absl::Status status =
      stranger.CreateJob(TinySyntheticSpec(), {address, listener.address()});
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_FALSE(listener.WasCalled());
}

}  // namespace
}  // namespace eps
