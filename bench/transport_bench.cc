// The chunk stream between a server process and a worker process against what the same loopback
// connection can do: a bare TCP socket, and the same payload as protobuf messages over gRPC, in a
// stream and call by call. Codecs and checksums of chunks are left out. Rounds run one transport
// after the other; a figure is the median of the rounds' ratios, the first round is not counted.
// After each fetch, outside of the time, every byte is compared with what was sent. Usage:
// transport_bench [MiB per fetch] [rounds] [cores of each process, 0: all]. Exits with 1 if a fetch
// fails, a byte differs or a goal is missed, 64 if called wrongly, 70 if nothing can be measured.

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "bench/transport_client.h"
#include "bench/transport_server.h"

namespace eps {
namespace {

constexpr size_t kMebi = size_t{1} << 20;
constexpr size_t kChunkBytes = 4 * kMebi * sizeof(float);  // the product's largest chunk
constexpr int kGigabyte = 1'000'000'000;

// What is compared, and the least ratio; 0 if it is told without a goal.
struct Goal {
  size_t peer;
  const char* text;
  double ratio;
};

// CPU seconds that a process has taken.
double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec time = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Keeps this process on one core, as far as there are two; what it starts later inherits that.
void KeepTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

// Serves until the other end of `lifeline` is closed. Writes the ports to `out`.
int Serve(const TransportLoad& load, int lifeline, int out) {
  const auto server = TransportServer::Start(load);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", std::string(server.status().message()).c_str());
    return 70;
  }
  const TransportServer::Ports ports = (*server)->ports();
  if (write(out, &ports, sizeof(ports)) != sizeof(ports)) return 70;
  char ignored;
  while (read(lifeline, &ignored, 1) > 0) {
  }
  return 0;
}

// The server in a process of its own, forked before this one has threads.
class ServerProcess {
 public:
  ServerProcess(const TransportLoad& load, bool pin) {
    int lifeline[2], ports[2];
    if (pipe2(lifeline, O_CLOEXEC) != 0 || pipe2(ports, O_CLOEXEC) != 0) std::exit(71);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (pin) KeepTo(0);
      close(lifeline[1]);
      std::_Exit(Serve(load, lifeline[0], ports[1]));
    }
    close(lifeline[0]);
    close(ports[1]);
    lifeline_ = lifeline[1];
    started_ = pid_ > 0 && read(ports[0], &ports_, sizeof(ports_)) == sizeof(ports_);
    close(ports[0]);
  }
  ~ServerProcess() {
    close(lifeline_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool started() const { return started_; }
  pid_t pid() const { return pid_; }
  const TransportServer::Ports& ports() const { return ports_; }

 private:
  pid_t pid_ = -1;
  int lifeline_ = -1;
  bool started_ = false;
  TransportServer::Ports ports_;
};

// A transport and what each round found. CPU seconds are of both processes.
struct Way {
  const char* name;
  std::unique_ptr<TransportClient> client;
  std::vector<double> seconds;
  std::vector<double> client_cpu;
  std::vector<double> server_cpu;
};

// One fetch, timed, then compared. False after a message if it failed.
bool Measure(const TransportLoad& load, pid_t server, const PageArray& memory, Way* way) {
  std::memset(memory.data(), 0, load.total_bytes);
  auto* out = static_cast<uint8_t*>(memory.data());
  const double server_cpu = CpuSeconds(server);
  const double client_cpu = CpuSeconds(getpid());
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = way->client->Fetch(out);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  way->seconds.push_back(seconds.count());
  way->client_cpu.push_back(CpuSeconds(getpid()) - client_cpu);
  way->server_cpu.push_back(CpuSeconds(server) - server_cpu);
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", way->name, std::string(status.message()).c_str());
    return false;
  }
  const size_t difference = FirstDifference(out, load.total_bytes);
  if (difference == load.total_bytes) return true;
  std::fprintf(stderr, "%s: byte %zu of %zu is not what was sent\n", way->name, difference,
               load.total_bytes);
  return false;
}

bool Report(const TransportLoad& load, const std::vector<Way>& ways,
            const std::vector<Goal>& goals) {
  const double gigabytes = static_cast<double>(load.total_bytes) / kGigabyte;
  std::printf("%-34s %-22s CPU s/GB: both  worker  server\n", "", "GB/s");
  for (const Way& way : ways) {
    std::vector<double> rates, cpu;
    for (size_t i = 0; i < way.seconds.size(); ++i) {
      rates.push_back(gigabytes / way.seconds[i]);
      cpu.push_back((way.client_cpu[i] + way.server_cpu[i]) / gigabytes);
    }
    const Spread rate = SpreadOf(rates);
    std::printf("%-34s %5.2f [%.2f..%.2f]  %14.3f %7.3f %7.3f\n", way.name, rate.median, rate.low,
                rate.high, SpreadOf(cpu).median, SpreadOf(way.client_cpu).median / gigabytes,
                SpreadOf(way.server_cpu).median / gigabytes);
  }
  bool reached = true;
  for (const Goal& goal : goals) {
    std::vector<double> ratios;
    for (size_t i = 0; i < ways[0].seconds.size(); ++i) {
      ratios.push_back(ways[goal.peer].seconds[i] / ways[0].seconds[i]);
    }
    if (!ReportRatio(goal.text, ratios, goal.ratio)) reached = false;
  }
  return reached;
}

int Run(const TransportLoad& load, int rounds, const ServerProcess& server) {
  std::vector<Way> ways;
  const auto add = [&](const char* name, std::unique_ptr<TransportClient> client) {
    ways.push_back({name, std::move(client), {}, {}, {}});
  };
  add("chunk stream", NewChunkStreamClient(load, server.ports().chunks));
  for (const bool in_place : {false, true}) {
    auto tcp = NewTcpClient(load, server.ports().tcp, in_place);
    if (!tcp.ok()) {
      std::fprintf(stderr, "%s\n", std::string(tcp.status().message()).c_str());
      return 70;
    }
    add(in_place ? "TCP socket, received in place" : "TCP socket", std::move(*tcp));
  }
  const int peers = server.ports().peers;
  add("protobuf, one stream", NewProtobufStreamClient(load, peers, /*product_channel=*/false));
  add("protobuf, a call for each slice", NewUnaryClient(load, peers));
  add("protobuf stream, our channel", NewProtobufStreamClient(load, peers, true));
  const std::vector<Goal> goals = {
      {1, "throughput / TCP socket", 0.95},           {3, "throughput / protobuf stream", 1.3},
      {4, "throughput / protobuf calls", 2.0},        {2, "throughput / TCP socket, in place", 0},
      {5, "throughput / stream over our channel", 0},
  };
  const PageArray memory(load.total_bytes);
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      // Another one begins in each round: none always follows the same other.
      Way& way = ways[(i + static_cast<size_t>(round)) % ways.size()];
      if (!Measure(load, server.pid(), memory, &way)) return 1;
    }
    if (round > 0) continue;
    for (Way& way : ways) {
      way.seconds.clear();
      way.client_cpu.clear();
      way.server_cpu.clear();
    }
  }
  return Report(load, ways, goals) ? 0 : 1;
}

int Main(int argc, char** argv) {
  const long mebi = argc > 1 ? std::atol(argv[1]) : 512;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int cores = argc > 3 ? std::atoi(argv[3]) : 0;
  if (mebi < 1 || rounds < 1 || cores < 0 || cores > 1) {
    std::fprintf(stderr, "usage: transport_bench [MiB] [rounds] [1: a core for each process]\n");
    return 64;
  }
  TransportLoad load;
  load.total_bytes = static_cast<size_t>(mebi) * kMebi;
  load.chunk_bytes = kChunkBytes;
  std::printf(
      "machine: %s, %u threads; %ld MiB in chunks of %zu MiB, slices of 2 MiB; %d rounds; "
      "two processes, %s\n",
      MachineName().c_str(), std::thread::hardware_concurrency(), mebi, kChunkBytes / kMebi, rounds,
      cores == 1 ? "a core for each" : "all cores for both");
  std::fflush(stdout);
  const bool pin = cores == 1 && std::thread::hardware_concurrency() > 1;
  const ServerProcess server(load, pin);
  if (!server.started()) return 70;
  if (pin) KeepTo(1);
  return Run(load, rounds, server);
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) { return eps::Main(argc, argv); }
