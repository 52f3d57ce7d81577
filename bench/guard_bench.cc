// Measures what the guard of a server costs a call over TLS (docs/guides/security.md): it reads the
// caller's role, looks the RPC up, and verifies the token if there is one. Times are thread CPU
// times of the guard alone, on the metadata of a real call.
//
// Usage: guard_bench [rounds]. Exits with 0 if the median with a token reaches the goal, with 1 if
// it does not, or if the guard refuses what it should accept or the reverse.

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/files/files.h"
#include "bench/peers/timing.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/scheduler.pb.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/rpc/role_guard.h"
#include "eps_server/rpc/testing/certified_peer.h"
#include "wire/security/job_token.h"
#include "wire/security/peer_role.h"

namespace eps {
namespace {

constexpr int kCalls = 20'000;  // of a round
constexpr double kGoalMicroseconds = 20;

double ThreadSeconds() {
  timespec t;
  EPS_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// A call of one RPC: what the guard sees of it.
struct Call {
  std::string path;
  std::string token;  // empty: none

  RoleGuard::InputMetadata metadata() const {
    RoleGuard::InputMetadata all;
    all.insert({":path", path});
    all.insert({"user-agent", "eps-worker"});
    if (!token.empty()) all.insert({kTokenMetadata, token});
    return all;
  }
};

bool Accepts(RoleGuard* guard, CertifiedPeer* peer, const Call& call) {
  RoleGuard::OutputMetadata consumed;
  RoleGuard::OutputMetadata response;
  return guard->Process(call.metadata(), peer, &consumed, &response).ok();
}

// Returns microseconds a call. Each thousand calls have a connection of their own, because the
// guard limits the calls of one.
double Measure(RoleGuard* guard, const std::string& uri, const Call& call) {
  static std::vector<std::unique_ptr<CertifiedPeer>> peers;  // an address is used once
  constexpr int kCallsOfOne = 1000;
  for (int i = 0; i < kCalls / kCallsOfOne; ++i)
    peers.push_back(std::make_unique<CertifiedPeer>(uri));
  std::unique_ptr<CertifiedPeer>* const first = &peers[peers.size() - kCalls / kCallsOfOne];
  const RoleGuard::InputMetadata metadata = call.metadata();
  RoleGuard::OutputMetadata consumed;
  RoleGuard::OutputMetadata response;
  const double start = ThreadSeconds();
  for (int i = 0; i < kCalls; ++i) {
    CertifiedPeer* const peer = first[i / kCallsOfOne].get();
    EPS_CHECK(guard->Process(metadata, peer, &consumed, &response).ok());
  }
  return 1e6 * (ThreadSeconds() - start) / kCalls;
}

// The guard reads the descriptors of the services, so their files must be linked.
bool ServicesAreLinked() {
  return v1::StatusRequest::descriptor() != nullptr && v1::FetchRequest::descriptor() != nullptr &&
         v1::ShardMessage::descriptor() != nullptr && v1::Job::descriptor() != nullptr;
}

int Run(int rounds) {
  EPS_CHECK(ServicesAreLinked());
  const ScratchFolder folder{*MakeTemporaryFolder("guard-bench")};
  const std::string line = *NewTokenKeyLine();
  EPS_CHECK(ReplaceSecret(folder.path + "/keys", line).ok());
  const auto guard = RoleGuard::Create("eps", {folder.path + "/keys", false});
  EPS_CHECK_MSG(guard.ok(), guard.status());
  const std::string uri = UriOfPeer({v1::ROLE_WORKER, "job"}, "eps");
  CertifiedPeer worker(uri);
  const JobToken token = {0x0123456789abcdef, v1::ROLE_WORKER, std::time(nullptr) + 3600};
  const Call plain = {"/eps.v1.Data/BeginStep", ""};
  const Call with_token = {plain.path, SignToken(token, ParseTokenKeys(line)->front())};
  CertifiedPeer viewer(UriOfPeer({v1::ROLE_VIEWER, ""}, "eps"));
  Call forged = with_token;
  forged.token.back() = forged.token.back() == '0' ? '1' : '0';
  const bool right =
      Accepts(guard->get(), &worker, plain) && Accepts(guard->get(), &worker, with_token) &&
      !Accepts(guard->get(), &worker, forged) && !Accepts(guard->get(), &viewer, plain);
  std::vector<double> without;
  std::vector<double> with;
  for (int i = 0; i < rounds; ++i) {
    without.push_back(Measure(guard->get(), uri, plain));
    with.push_back(Measure(guard->get(), uri, with_token));
  }
  const Spread role = SpreadOf(without);
  const Spread both = SpreadOf(with);
  const bool reached = both.median <= kGoalMicroseconds;
  std::printf("%s, %d rounds of %d calls\n", MachineName().c_str(), rounds, kCalls);
  std::printf("microseconds a call, role alone      %.2f [%.2f..%.2f]\n", role.median, role.low,
              role.high);
  std::printf("microseconds a call, role and token  %.2f [%.2f..%.2f] goal at most %.0f: %s\n",
              both.median, both.low, both.high, kGoalMicroseconds, reached ? "reached" : "MISSED");
  if (!right) std::printf("the guard accepts or refuses the wrong calls\n");
  return right && reached ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Run(argc > 1 ? std::atoi(argv[1]) : 25); }
