// The notices of a session whose worker reads nothing. The test stands for the transport.

#include "eps_server/rpc/calls/session_call.h"

#include <future>
#include <memory>
#include <utility>

#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kTimeout{300};

// A server without peers.
class NoPeers final : public PeerCaller {
 public:
  absl::Status CheckPeer(const std::string&) const override { return absl::OkStatus(); }
  void Prepare(const std::string&, v1::PrepareJobRequest, Clock::time_point,
               Prepared done) override {
    done(absl::UnavailableError("no peers"));
  }
  void OpenLink(std::shared_ptr<JobShell>) override {}
  void CloseLink() override {}
};

v1::Notice NoticeOf(int leases) {
  v1::Notice notice;
  for (int i = 0; i < leases; ++i) notice.add_leases()->set_generation(1);
  return notice;
}

TEST(SessionCall, KeepsOnlyTheNewestUnreadNotice) {
  MemoryAccount account;
  TimerQueue timers;
  auto pool = std::make_unique<ThreadPool>(1);
  NoPeers peers;
  ShellEnvironment environment = ShellEnvironment::Default();
  environment.pool = pool.get();
  environment.timers = &timers;
  environment.account = &account;
  auto host = std::make_unique<JobHost>(environment, JobRecords(), &peers);
  v1::CreateJobRequest request;
  request.set_spec_text(TinySyntheticSpec().ToText());
  request.add_servers("a:1");
  std::promise<absl::Status> created;
  host->CreateJob(request, CallerScope(), JobHost::Clock::now() + kTimeout,
                  [&created](const absl::StatusOr<v1::CreateJobReply>& reply) {
                    created.set_value(reply.status());
                  });
  const absl::Status status = created.get_future().get();
  ASSERT_TRUE(status.ok()) << status;

  auto* const transport =
      SessionCall::Start(host.get(), CallerScope());  // no RPC is bound: no write completes
  auto* const call = static_cast<SessionCall*>(transport);
  call->OnReply(NoticeOf(1));
  const size_t first = call->queued_bytes();
  ASSERT_GT(first, 0u);
  for (int leases = 2; leases < 1000; ++leases) call->OnReply(NoticeOf(leases));
  EXPECT_EQ(call->queued_bytes(), first) << "older notices wait";
  transport->OnWriteDone(true);
  EXPECT_GT(call->queued_bytes(), 998 * (first - 1)) << "the newest notice has 999 leases";
  transport->OnWriteDone(true);
  EXPECT_EQ(call->queued_bytes(), 0u);

  transport->OnCancel();
  transport->OnReadDone(false);
  transport->OnDone();
  host->job()->CloseStreams(absl::UnavailableError("the end"));
  host.reset();
  timers.Stop();
  pool.reset();
}

}  // namespace
}  // namespace eps
