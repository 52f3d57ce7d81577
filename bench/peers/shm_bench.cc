// Compares payloads in shared memory with payloads in messages of our own gRPC streams over
// loopback, between a server process and a worker process: weights that the worker fetches, and
// gradients that it pushes. Both sides compute the CRC32C of every payload in both ways, as the
// product does; codecs are left out. The ways take turns, and a figure is the median of the rounds'
// ratios. In a first round, which is not timed, every byte is compared with what was sent.
//
// Usage: shm_bench [MiB per round] [rounds]. Exits with 1 if a payload is damaged or a goal is
// missed, with 64 after a wrong call.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/files.h"
#include "bench/peers/shm_peers.h"
#include "bench/peers/timing.h"

namespace eps {
namespace {

constexpr size_t kMebi = size_t{1} << 20;
constexpr size_t kPayloadBytes = 4 * kMebi;
constexpr double kGoal = 2.5;

// A payload's way from one process to the other.
struct Direction {
  const char* name;
  absl::Status (ShmWorker::*run)(bool shared, bool compare);
};

constexpr Direction kDirections[] = {{"weights", &ShmWorker::Fetch},
                                     {"gradients", &ShmWorker::Push}};

// Runs both ways in turns. Returns whether the goal is reached.
absl::StatusOr<bool> Compare(const Direction& direction, size_t bytes, int rounds,
                             ShmWorker* worker) {
  std::vector<double> ratios;
  std::vector<double> rates[2];
  for (int round = 0; round <= rounds; ++round) {
    double seconds[2];
    for (int turn = 0; turn < 2; ++turn) {
      const bool shared = (turn + round) % 2 == 1;
      const auto start = std::chrono::steady_clock::now();
      const absl::Status status = (worker->*direction.run)(shared, /*compare=*/round == 0);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (!status.ok()) return status;
      seconds[shared] = took.count();
    }
    if (round == 0) continue;
    ratios.push_back(seconds[0] / seconds[1]);
    for (const int way : {0, 1}) {
      rates[way].push_back(static_cast<double>(bytes) / 1e9 / seconds[way]);
    }
  }
  for (const int way : {0, 1}) {
    const Spread rate = SpreadOf(rates[way]);
    std::printf("%s in %-14s %6.2f GB/s [%.2f..%.2f]\n", direction.name,
                way == 1 ? "shared memory" : "messages", rate.median, rate.low, rate.high);
  }
  return ReportRatio(std::string(direction.name) + ": shared memory / messages", ratios, kGoal);
}

int Run(size_t bytes, int rounds) {
  const absl::StatusOr<std::string> folder = MakeTemporaryFolder("shm");
  int offers[2];
  if (!folder.ok() || pipe(offers) != 0) return 71;
  const ScratchFolder scratch = {*folder};
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::_Exit(ServeShmPeers({bytes, kPayloadBytes}, *folder, offers[1]));
  }
  const auto worker = ShmWorker::Connect({bytes, kPayloadBytes}, offers[0]);
  absl::Status status = worker.status();
  bool reached = true;
  for (const Direction& direction : kDirections) {
    if (!status.ok()) break;
    const absl::StatusOr<bool> compared = Compare(direction, bytes, rounds, worker->get());
    status = compared.status();
    reached = compared.ok() && *compared && reached;
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() && reached ? 0 : 1;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 128;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mebi < 4 || mebi % 4 != 0 || rounds < 1) {
    std::fprintf(stderr, "usage: shm_bench [MiB per round, a multiple of 4] [rounds]\n");
    return 64;
  }
  std::printf("machine: %s, %u threads; %ld MiB in payloads of %zu MiB; %d rounds\n",
              MachineName().c_str(), std::thread::hardware_concurrency(), mebi,
              kPayloadBytes / kMebi, rounds);
  std::fflush(stdout);
  return Run(static_cast<size_t>(mebi) * kMebi, rounds);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
